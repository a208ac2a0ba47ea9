// Runs every kernel on threads of the host, to be compiled with a sanitizer:
// -fsanitize=thread finds words that threads of one launch share without
// atomic operations, -fsanitize=address,undefined what is out of bounds.
#include <cmath>
#include <set>

#include "emulation.cpp"

namespace {

// An undirected graph with a hub, in all forms that kernels read.
struct Graph {
  int64_t n;
  std::vector<int64_t> rowptr{0}, group_ptr{0}, group_end;
  std::vector<int32_t> col, by_degree;  // ascending by node, and by degree
  std::vector<float> scale, power;      // d^-1/2 of entries, of nodes

  explicit Graph(int64_t n) : n(n) {
    std::mt19937_64 random(1);
    std::vector<std::set<int32_t>> rows(n);
    const auto link = [&](int64_t u, int64_t v) {
      if (u != v) {
        rows[u].insert(static_cast<int32_t>(v));
        rows[v].insert(static_cast<int32_t>(u));
      }
    };
    for (int64_t i = 0; i < 3 * n; ++i)
      link(random() % n, random() % n);
    for (int64_t v = 1; v < n; v += 2)
      link(0, v);
    for (const auto& row : rows)
      power.push_back(
          row.empty() ? 0.f : 1 / std::sqrt(static_cast<float>(row.size())));
    for (const auto& row : rows) {
      col.insert(col.end(), row.begin(), row.end());
      std::vector<int32_t> sorted(row.begin(), row.end());
      const auto size = [&](int32_t v) { return rows[v].size(); };
      std::stable_sort(sorted.begin(), sorted.end(), [&](int32_t u, int32_t v) {
        return size(u) < size(v);
      });
      for (size_t i = 0; i < sorted.size(); ++i) {
        by_degree.push_back(sorted[i]);
        scale.push_back(power[sorted[i]]);
        const bool last = i + 1 == sorted.size();
        if (last || std::ilogb(size(sorted[i])) !=
                        std::ilogb(size(sorted[i + 1])))
          group_end.push_back(static_cast<int64_t>(by_degree.size()));
      }
      group_ptr.push_back(static_cast<int64_t>(group_end.size()));
      rowptr.push_back(static_cast<int64_t>(col.size()));
    }
  }
};

template <typename T>
void* all(const std::vector<T>& data) {
  return const_cast<T*>(data.data());
}

}  // namespace

int main() {
  using namespace pyg_trust;
  const Graph g(1500);
  const int64_t n = g.n, levels = 3;
  const std::vector<double> ratio{.7, .7, .7}, keep{.3, .3, .3, 1};
  for (const int order : {kThreads, kShuffled}) {
    for (const int64_t columns : {1, 3, 20}) {
      std::vector<float> x(n * columns), z(n * columns), eps(columns, .05f);
      std::vector<int64_t> pushed((columns + 15) / 16);
      for (size_t i = 0; i < x.size(); ++i)
        x[i] = static_cast<float>(i * 7919 % 1000) / 1000 - .4f;
      for (const double above : {1e9, .5, HUGE_VAL}) {
        void* at[] = {all(g.rowptr), all(g.by_degree), all(g.scale),
                      all(g.group_ptr), all(g.group_end), all(g.rowptr),
                      all(g.col), all(g.power), all(g.power), all(x), all(eps),
                      all(z), all(ratio), all(keep), all(pushed)};
        const int64_t number[] = {n, columns, levels, 7, 0};
        push_float(order, at, number, above);
      }
    }
    std::vector<int64_t> roots(n), out_ptr(n + 1), out_node(n), counts(3);
    std::iota(roots.begin(), roots.end(), 0);
    const std::vector<std::pair<int64_t, int64_t>> walks{
        {0, 1}, {1, 1}, {2, 3}, {40, 50}, {1, 3000}};
    for (const auto& [length, restarts] : walks)
      disjoint_walks(order, g.rowptr.data(), g.col.data(), n, roots.data(), n,
                     length, restarts, 3, out_ptr.data(), out_node.data(),
                     counts.data());
  }
}
