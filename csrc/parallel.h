// Dynamic scheduling on torch's thread pool. Which thread runs which task is
// left open, so tasks must not depend on it.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <atomic>
#include <cstdint>

namespace pyg_trust {

// Runs `make()` once on each thread that takes part, and the callable it
// returns once for each task in [0, num_tasks).
template <typename Make>
void parallel_tasks(int64_t num_tasks, const Make& make) {
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
