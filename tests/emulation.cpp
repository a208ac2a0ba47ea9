// The algorithms of csrc/device on the host, for tests: the code that runs on
// a GPU, with threads one after the other in a chosen order, or as threads of
// the host. Memory starts as garbage, and what is written behind an allocation
// is found out.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "device/push.h"
#include "device/walk.h"

namespace pyg_trust {
namespace {

enum Order { kUp, kDown, kShuffled, kThreads };

class Host {
 public:
  explicit Host(int order) : order_(order), random_(order) {}
  Host(Host&&) = default;
  ~Host() {
    for (const Block& block : blocks_) {
      for (size_t i = 0; i < kMargin; ++i) {
        if (block.data.get()[block.bytes + i] != kGarbage)
          fail("wrote behind its memory");
      }
    }
  }

  template <typename T>
  T* make(int64_t count) {
    if (count < 0)
      fail("negative size");
    const size_t bytes = static_cast<size_t>(count) * sizeof(T);
    const size_t whole = (bytes + kMargin + 127) / 128 * 128;
    Block block;
    block.bytes = bytes;
    block.data.reset(static_cast<uint8_t*>(std::aligned_alloc(128, whole)));
    std::memset(block.data.get(), kGarbage, whole);
    blocks_.push_back(std::move(block));
    return reinterpret_cast<T*>(blocks_.back().data.get());
  }

  template <typename T>
  void zero(T* data, int64_t count) {
    std::memset(static_cast<void*>(data), 0, count * sizeof(T));
  }

  template <typename F>
  void run(int64_t rows,
           int64_t lanes,
           const F& f,
           const int64_t* count = nullptr) {
    rows = counted(rows, count);
    visit(rows * lanes, [&](int64_t i) { f(i / lanes, i % lanes); });
  }

  template <int parts, typename T, typename Part, typename End>
  void run_parts(int64_t rows,
                 int64_t lanes,
                 const Part& part,
                 const End& end,
                 const int64_t* count = nullptr) {
    rows = counted(rows, count);
    visit(rows * lanes, [&](int64_t i) {
      T sum[parts];
      for (int k = 0; k < parts; ++k) {
        const int p = order_ == kDown ? parts - 1 - k : k;
        sum[p] = part(i / lanes, i % lanes, int64_t{p});
      }
      // What the lanes of a warp do: all at once, each with its partner.
      for (int offset = parts / 2; offset > 0; offset /= 2) {
        T old[parts];
        std::copy(sum, sum + parts, old);
        for (int p = 0; p < parts; ++p)
          sum[p] = device::join(old[p], old[p ^ offset]);
      }
      end(i / lanes, i % lanes, sum[0]);
    });
  }

  template <typename F>
  void run_team(int64_t rows, const F& f) {
    device::Team team;
    team.down = order_ == kDown;
    visit(rows, [&](int64_t i) { f(i, team); });
  }

  void sort(uint64_t* key, int64_t* value, int64_t count) {
    std::vector<std::pair<uint64_t, int64_t>> pairs(count);
    for (int64_t i = 0; i < count; ++i)
      pairs[i] = {key[i], value[i]};
    std::stable_sort(pairs.begin(), pairs.end(),
                     [](auto& a, auto& b) { return a.first < b.first; });
    for (int64_t i = 0; i < count; ++i)
      std::tie(key[i], value[i]) = pairs[i];
  }

  void sum_before(int64_t* data, int64_t count) {
    std::exclusive_scan(data, data + count, data, int64_t{0});
  }

  int64_t read(const int64_t* data) { return *data; }

 private:
  static constexpr size_t kMargin = 64;
  static constexpr uint8_t kGarbage = 0xA5;

  struct Free {
    void operator()(uint8_t* data) const { std::free(data); }
  };
  struct Block {
    std::unique_ptr<uint8_t[], Free> data;
    size_t bytes;
  };

  [[noreturn]] static void fail(const char* what) {
    std::fprintf(stderr, "emulation: %s\n", what);
    std::abort();
  }

  static int64_t counted(int64_t most, const int64_t* count) {
    if (count != nullptr && (*count < 0 || *count > most))
      fail("more than there may be");
    return count == nullptr ? most : *count;
  }

  template <typename F>
  void visit(int64_t count, const F& f) {
    if (order_ == kUp) {
      for (int64_t i = 0; i < count; ++i)
        f(i);
    } else if (order_ == kDown) {
      for (int64_t i = count; i-- > 0;)
        f(i);
    } else if (order_ == kThreads) {
      constexpr int kCount = 4;
      std::vector<std::thread> threads;
      for (int t = 0; t < kCount; ++t) {
        threads.emplace_back([&, t] {
          for (int64_t i = t; i < count; i += kCount)
            f(i);
        });
      }
      for (std::thread& thread : threads)
        thread.join();
    } else {
      std::vector<int64_t> at(count);
      std::iota(at.begin(), at.end(), 0);
      std::shuffle(at.begin(), at.end(), random_);
      for (const int64_t i : at)
        f(i);
    }
  }

  int order_;
  std::mt19937_64 random_;
  std::vector<Block> blocks_;
};

}  // namespace

// What tests pass: pointers, whole numbers and one real number, in the order of
// the fields of Dense, a graph first.
struct Given {
  void* const* at;
  const int64_t* number;

  template <typename T>
  T* of(int i) const {
    return static_cast<T*>(at[i]);
  }
  template <typename scalar_t>
  PushGraph<scalar_t> graph() const {
    return {of<int64_t>(0), of<int32_t>(1), of<scalar_t>(2), of<int64_t>(3),
            of<int64_t>(4)};
  }
  int64_t entries() const { return of<int64_t>(0)[number[0]]; }
};

template <typename scalar_t>
void push(int order, const Given& g, double pull_above) {
  device::push([=] { return Host(order); },
               Dense<scalar_t>{g.graph<scalar_t>(), g.of<int64_t>(5),
                               g.of<int32_t>(6), g.of<scalar_t>(7),
                               g.of<scalar_t>(8), g.number[0], g.entries(),
                               g.of<scalar_t>(9), g.of<scalar_t>(10),
                               g.of<scalar_t>(11), g.number[1],
                               g.of<double>(12), g.of<double>(13), g.number[2],
                               static_cast<uint64_t>(g.number[3]), g.number[4],
                               pull_above, g.of<int64_t>(14)});
}

// Whether push_row, cut into parts of `at_once` units, sends what it sends in
// one call.
template <typename scalar_t>
bool parts_are_the_row(const Given& g, scalar_t mass) {
  const int64_t num_nodes = g.number[0], seed = g.number[1];
  const int64_t at_once = g.number[2];
  struct Sent {
    std::vector<std::pair<int64_t, scalar_t>>& sent;
    void add(int64_t v, scalar_t factor) const { sent.emplace_back(v, factor); }
    void prefetch(int64_t) const {}
  };
  const auto graph = g.graph<scalar_t>();
  for (int64_t u = 0; u < num_nodes; ++u) {
    std::vector<std::pair<int64_t, scalar_t>> row, parts;
    const uint64_t key = derive(seed, u);
    push_row(graph, u, mass, key, Sent{row});
    const PushUnits units = push_units(graph, u, mass);
    for (int64_t from = 0; from < units.all; from += at_once)
      push_row(graph, u, mass, key, Sent{parts},
               PushPart{from, std::min(from + at_once, units.all),
                        units.sure});
    if (row != parts)
      return false;
    double total = 0;
    for (const auto& [v, factor] : row)
      total += factor;
    if (total > (push_spread(graph, u) + 1 / double{mass}) * (1 + 1e-6))
      return false;
  }
  return true;
}

}  // namespace pyg_trust

extern "C" {

void disjoint_walks(int order,
                    const int64_t* rowptr,
                    const int32_t* col,
                    int64_t num_nodes,
                    const int64_t* roots,
                    int64_t num_roots,
                    int64_t walk_length,
                    int64_t restarts,
                    int64_t seed,
                    int64_t* ptr,
                    int64_t* node,
                    int64_t* counts) {
  using namespace pyg_trust;
  Host host(order);
  const device::Subgraphs found = device::disjoint_walks(
      host, device::Walks{rowptr, col, num_nodes, roots, num_roots, walk_length, restarts,
                          static_cast<uint64_t>(seed)});
  device::write_subgraphs(host, found, ptr, node);
  counts[0] = found.count;
  counts[1] = found.size;
  counts[2] = found.rounds;
}

#define PUSH(name, scalar_t)                                                 \
  void push_##name(int order, void** at, const int64_t* number, double above) { \
    pyg_trust::push<scalar_t>(order, {at, number}, above);                   \
  }                                                                          \
  int parts_##name(int, void** at, const int64_t* number, double mass) {     \
    return pyg_trust::parts_are_the_row<scalar_t>(                           \
        {at, number}, static_cast<scalar_t>(mass));                          \
  }
PUSH(float, float)
PUSH(double, double)

}  // extern "C"
