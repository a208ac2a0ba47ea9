// Dynamic scheduling on torch's thread pool. Which thread runs which task is
// left open, so tasks must not depend on it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>

namespace pyg_trust {

// Work below this many array elements is not worth waking a thread for.
constexpr int64_t kSerial = 1 << 16;

// Runs `make()` once on each thread that takes part, and the callable it
// returns once for each task in [0, num_tasks). `work` is about how many array
// elements all tasks touch together.
template <typename Make>
void parallel_tasks(int64_t num_tasks, int64_t work, const Make& make) {
  if (num_tasks <= 1 || work < kSerial) {
    if (num_tasks > 0) {
      auto run = make();
      for (int64_t task = 0; task < num_tasks; ++task)
        run(task);
    }
    return;
  }
  std::atomic<int64_t> next{0};
  const int64_t threads = torch::stable::get_num_threads();
  torch::stable::parallel_for(0, threads, 1, [&](int64_t, int64_t) {
    int64_t task = next.fetch_add(1);
    if (task >= num_tasks)
      return;
    auto run = make();
    for (; task < num_tasks; task = next.fetch_add(1))
      run(task);
  });
}

}  // namespace pyg_trust
