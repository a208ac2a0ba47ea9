// The algorithms of csrc/device on the host, for tests: the code that runs on
// a GPU, with threads one after the other in a chosen order, or as threads of
// the host. Memory starts as garbage, and what is written behind an allocation
// is found out.
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

// What one thread does after another, and the longest way through a run of
// the machine: the largest of each launch, summed over all launches.
struct Work {
  int64_t loads = 0;
  int64_t adds = 0;
};
inline thread_local Work work;
inline Work path;
#define PYG_TRUST_COUNT(what, number) (work.what += (number))

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
  void run(int64_t rows, int64_t lanes, const F& f) {
    each(rows * lanes, [&](int64_t i) { f(i / lanes, i % lanes); });
  }

  template <typename F>
  void run(int64_t most, int64_t lanes, const F& f, const int64_t* count) {
    if (*count < 0 || *count > most)
      fail("more than there may be");
    run(*count, lanes, f);
  }

  template <int parts, typename T, typename Part, typename End>
  void run_parts(int64_t rows,
                 int64_t lanes,
                 const Part& part,
                 const End& end) {
    each(rows * lanes, [&](int64_t i) {
      T sum[parts];
      Work most;
      const Work before = work;
      for (int k = 0; k < parts; ++k) {
        const int p = order_ == kDown ? parts - 1 - k : k;
        work = before;
        sum[p] = part(i / lanes, i % lanes, int64_t{p});
        most.adds = std::max(most.adds, work.adds);
        most.loads = std::max(most.loads, work.loads);
      }
      // What the lanes of a warp do: all at once, each with its partner.
      for (int offset = parts / 2; offset > 0; offset /= 2) {
        T old[parts];
        std::copy(sum, sum + parts, old);
        for (int p = 0; p < parts; ++p) {
          work = most;
          sum[p] = device::join(old[p], old[p ^ offset]);
        }
        most = work;
      }
      work = most;
      end(i / lanes, i % lanes, sum[0]);
    });
  }

  template <int parts, typename T, typename Part, typename End>
  void run_parts(int64_t most,
                 int64_t lanes,
                 const Part& part,
                 const End& end,
                 const int64_t* count) {
    if (*count < 0 || *count > most)
      fail("more than there may be");
    run_parts<parts, T>(*count, lanes, part, end);
  }

  template <typename F>
  void run_team(int64_t rows, const F& f) {
    device::Team team;
    team.down = order_ == kDown;
    each(rows, [&](int64_t i) { f(i, team); });
  }

  void sort(uint64_t* key, int64_t* value, int64_t count, int bits) {
    std::vector<int64_t> at(count);
    std::iota(at.begin(), at.end(), 0);
    for (int64_t i = 0; i < count; ++i) {
      if (bits < 64 && key[i] >> bits != 0)
        fail("a key with more bits");
    }
    std::stable_sort(at.begin(), at.end(),
                     [&](int64_t i, int64_t j) { return key[i] < key[j]; });
    const std::vector<uint64_t> keys(key, key + count);
    std::vector<int64_t> values;
    if (value != nullptr)
      values.assign(value, value + count);
    for (int64_t i = 0; i < count; ++i) {
      key[i] = keys[at[i]];
      if (value != nullptr)
        value[i] = values[at[i]];
    }
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

  void each(int64_t count, const std::function<void(int64_t)>& body) {
    Work most;
    std::mutex mutex;
    const auto f = [&](int64_t i) {
      work = {};
      body(i);
      if (work.loads == 0 && work.adds == 0)
        return;
      const std::lock_guard<std::mutex> lock(mutex);
      most.loads = std::max(most.loads, work.loads);
      most.adds = std::max(most.adds, work.adds);
    };
    visit(count, f);
    path.loads += most.loads;
    path.adds += most.adds;
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

template <typename scalar_t>
void push(int order,
          const int64_t* rowptr,
          const int32_t* col,
          const scalar_t* scale,
          const int64_t* group_ptr,
          const int64_t* group_end,
          const int64_t* pull_rowptr,
          const int32_t* pull_col,
          const scalar_t* recv,
          const scalar_t* send,
          int64_t num_nodes,
          const scalar_t* x,
          int64_t columns,
          const scalar_t* eps,
          const double* ratio,
          const double* keep,
          int64_t levels,
          int64_t seed,
          int64_t first,
          double pull_above,
          scalar_t* z,
          int64_t* pushed) {
  device::push([=] { return Host(order); },
                      Dense<scalar_t>{
                          {rowptr, col, scale, group_ptr, group_end},
                          pull_rowptr,
                          pull_col,
                          recv,
                          send,
                          num_nodes,
                          rowptr[num_nodes],
                          x,
                          eps,
                          z,
                          columns,
                          ratio,
                          keep,
                          levels,
                          static_cast<uint64_t>(seed),
                          first,
                          pull_above,
                          pushed});
}

// Results go to node and value, one batch behind the other.
template <typename scalar_t>
void push_sparse(int order,
                 const int64_t* rowptr,
                 const int32_t* col,
                 const scalar_t* scale,
                 const int64_t* group_ptr,
                 const int64_t* group_end,
                 const scalar_t* send,
                 int64_t num_nodes,
                 const int64_t* ptr,
                 const int64_t* node,
                 const scalar_t* value,
                 int64_t num_signals,
                 const scalar_t* eps,
                 const scalar_t* prune,
                 const double* ratio,
                 const double* keep,
                 int64_t levels,
                 int64_t seed,
                 int64_t first,
                 int64_t top_k,
                 double threshold,
                 int64_t* out_ptr,
                 int64_t* out_node,
                 scalar_t* out_value) {
  int64_t used = 0;
  device::push_sparse(
      [=] { return Host(order); },
      Sparse<scalar_t>{{rowptr, col, scale, group_ptr, group_end},
                               send,
                               num_nodes,
                               rowptr[num_nodes],
                               ptr,
                               node,
                               value,
                               ptr[num_signals],
                               num_signals,
                               eps,
                               prune,
                               ratio,
                               keep,
                               levels,
                               static_cast<uint64_t>(seed),
                               first,
                               top_k,
                               threshold},
      out_ptr, [&](int64_t count) {
        const int64_t at = used;
        used += count;
        return device::Entries<scalar_t>{out_node + at, out_value + at};
      });
}

// Whether push_row, cut into parts of `at_once` units, sends what it sends in
// one call.
template <typename scalar_t>
bool parts_are_the_row(const int64_t* rowptr,
                       const int32_t* col,
                       const scalar_t* scale,
                       const int64_t* group_ptr,
                       const int64_t* group_end,
                       int64_t num_nodes,
                       scalar_t mass,
                       int64_t seed,
                       int64_t at_once) {
  struct Sent {
    std::vector<std::pair<int64_t, scalar_t>>& sent;
    void add(int64_t v, scalar_t factor) const { sent.emplace_back(v, factor); }
    void prefetch(int64_t) const {}
  };
  const PushGraph<scalar_t> graph{rowptr, col, scale, group_ptr, group_end};
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
      host, device::Walks{rowptr, col, num_nodes, rowptr[num_nodes], roots,
                          num_roots, walk_length, restarts,
                          static_cast<uint64_t>(seed)});
  device::write_subgraphs(host, found, ptr, node);
  counts[0] = found.count;
  counts[1] = found.size;
  counts[2] = found.rounds;
}

// What was counted since the last time.
void take_work(int64_t* out) {
  out[0] = path.loads;
  out[1] = path.adds;
  path = {};
}

#define PUSH(name, scalar_t)                                                  \
  void push_##name(int order, const int64_t* rowptr, const int32_t* col,      \
                   const scalar_t* scale, const int64_t* group_ptr,           \
                   const int64_t* group_end, const int64_t* pull_rowptr,      \
                   const int32_t* pull_col, const scalar_t* recv,             \
                   const scalar_t* send, int64_t num_nodes,                   \
                   const scalar_t* x, int64_t columns, const scalar_t* eps,   \
                   const double* ratio, const double* keep, int64_t levels,   \
                   int64_t seed, int64_t first, double pull_above,            \
                   scalar_t* z, int64_t* pushed) {                            \
    pyg_trust::push(order,        rowptr, col, scale, group_ptr, group_end,   \
                           pull_rowptr, pull_col, recv, send, num_nodes, x,   \
                           columns, eps, ratio, keep, levels, seed, first,    \
                           pull_above, z, pushed);                            \
  }                                                                           \
  void push_sparse_##name(                                                    \
      int order, const int64_t* rowptr, const int32_t* col,                   \
      const scalar_t* scale, const int64_t* group_ptr,                        \
      const int64_t* group_end, const scalar_t* send, int64_t num_nodes,      \
      const int64_t* ptr, const int64_t* node, const scalar_t* value,         \
      int64_t num_signals, const scalar_t* eps, const scalar_t* prune,        \
      const double* ratio, const double* keep, int64_t levels, int64_t seed,  \
      int64_t first, int64_t top_k, double threshold, int64_t* out_ptr,       \
      int64_t* out_node, scalar_t* out_value) {                               \
    pyg_trust::push_sparse(                                                   \
        order, rowptr, col, scale, group_ptr, group_end, send, num_nodes,     \
        ptr, node, value, num_signals, eps, prune, ratio, keep, levels, seed, \
        first, top_k, threshold, out_ptr, out_node, out_value);               \
  }
PUSH(float, float)
PUSH(double, double)

#define PARTS(name, scalar_t)                                                  \
  int name(const int64_t* rowptr, const int32_t* col, const scalar_t* scale,  \
           const int64_t* group_ptr, const int64_t* group_end,                \
           int64_t num_nodes, scalar_t mass, int64_t seed, int64_t at_once) { \
    return pyg_trust::parts_are_the_row(rowptr, col, scale, group_ptr,        \
                                        group_end, num_nodes, mass, seed,     \
                                        at_once);                             \
  }
PARTS(parts_float, float)
PARTS(parts_double, double)

}  // extern "C"
