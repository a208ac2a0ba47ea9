// The machine of csrc/device/machine.h that is a GPU: kernels, memory and
// scans on the current stream of a tensor's device.
#pragma once

#include <cuda_runtime.h>
#include <dlfcn.h>
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>
#include <torch/headeronly/core/ScalarType.h>
#include <torch/headeronly/util/Exception.h>

#include <cstdint>
#include <cub/device/device_radix_sort.cuh>
#include <cub/device/device_scan.cuh>
#include <vector>

#include "device/machine.h"

// In libtorch since 2.13; the library is to load with 2.10 as well.
extern "C" __attribute__((weak)) AOTITorchError
torch_stream_native_handle(StreamHandle stream, void** native);

namespace pyg_trust::cuda {

using torch::stable::Tensor;

constexpr int kThreads = 256;  // of a block

// Its name before torch 2.12.
#ifndef STABLE_TORCH_ERROR_CODE_CHECK
#define STABLE_TORCH_ERROR_CODE_CHECK TORCH_ERROR_CODE_CHECK
#endif

inline void check(cudaError_t error, const char* what) {
  STD_TORCH_CHECK(error == cudaSuccess, what, ": ", cudaGetErrorString(error));
}

// The stream that torch is working on.
inline cudaStream_t current_stream(int32_t device) {
  void* native = nullptr;
  if (torch_stream_native_handle != nullptr) {
    StreamHandle stream = nullptr;
    STABLE_TORCH_ERROR_CODE_CHECK(
        aoti_torch_get_current_stream(device, &stream));
    const AOTITorchError error = torch_stream_native_handle(stream, &native);
    STABLE_TORCH_ERROR_CODE_CHECK(aoti_torch_delete_stream(stream));
    STABLE_TORCH_ERROR_CODE_CHECK(error);
  } else {
    // Before 2.13 in torch's CUDA library alone, which is not linked, so that
    // the library loads without it, but is there.
    using Get = AOTITorchError (*)(int32_t, void**);
    static const auto get = [] {
      void* library = dlopen("libtorch_cuda.so", RTLD_LAZY | RTLD_NOLOAD);
      return library == nullptr
                 ? Get{}
                 : reinterpret_cast<Get>(
                       dlsym(library, "aoti_torch_get_current_cuda_stream"));
    }();
    STD_TORCH_CHECK(get != nullptr, "this torch does not tell its stream");
    STABLE_TORCH_ERROR_CODE_CHECK(get(device, &native));
  }
  return static_cast<cudaStream_t>(native);
}

// f(row, lane) for `rows` rows, or, if there is a count, for `*count`.
template <typename F>
__global__ void __launch_bounds__(kThreads)
    run_kernel(int64_t rows, const int64_t* count, int64_t lanes, F f) {
  if (count != nullptr)
    rows = *count;
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
       row < rows; row += step) {
    for (int64_t lane = threadIdx.x; lane < lanes; lane += blockDim.x)
      f(row, lane);
  }
}

// The same for one row and any number of lanes.
template <typename F>
__global__ void __launch_bounds__(kThreads) run_row_kernel(int64_t lanes, F f) {
  const int64_t step = int64_t{gridDim.x} * blockDim.x;
  for (int64_t lane = int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
       lane < lanes; lane += step)
    f(int64_t{0}, lane);
}

// What the partner of a thread has, word by word.
template <typename T>
__device__ inline T exchange(unsigned mask, const T& mine, int offset) {
  static_assert(sizeof(T) % sizeof(unsigned) == 0);
  constexpr int count = sizeof(T) / sizeof(unsigned);
  unsigned words[count];
  memcpy(words, &mine, sizeof(T));
#pragma unroll
  for (int i = 0; i < count; ++i)
    words[i] = __shfl_xor_sync(mask, words[i], offset);
  T other;
  memcpy(&other, words, sizeof(T));
  return other;
}

// What `parts` neighbouring threads of a warp have, joined, for each of them.
template <int parts, typename T>
__device__ inline T join_parts(T mine) {
  static_assert(parts >= 1 && parts <= 32 && (parts & (parts - 1)) == 0);
  if constexpr (parts > 1) {
    // These and no others: the loop that they are in may differ elsewhere. Of
    // the same loop, they have the same row and lane, so all of them are here.
    const int thread = threadIdx.y * blockDim.x + threadIdx.x;
    const unsigned mask = (parts == 32 ? ~0u : (1u << parts) - 1u)
                          << (thread % 32 / parts * parts);
    for (int offset = parts / 2; offset > 0; offset /= 2)
      mine = join(mine, exchange(mask, mine, offset));
  }
  return mine;
}

template <int parts, typename T, typename Part, typename End>
__global__ void __launch_bounds__(kThreads)
    parts_kernel(int64_t rows,
                 const int64_t* count,
                 int64_t lanes,
                 Part part,
                 End end) {
  if (count != nullptr)
    rows = *count;
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  const int p = threadIdx.x % parts;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
       row < rows; row += step) {
    for (int64_t lane = threadIdx.x / parts; lane < lanes;
         lane += blockDim.x / parts) {
      const T all = join_parts<parts, T>(part(row, lane, int64_t{p}));
      if (p == 0)
        end(row, lane, all);
    }
  }
}

// A warp for each row.
template <typename F>
__global__ void __launch_bounds__(kThreads) team_kernel(int64_t rows, F f) {
  static_assert(device::kTeam == 32 && kThreads % 32 == 0);
  const device::Team team{static_cast<int>(threadIdx.x)};
  const int64_t step = int64_t{gridDim.x} * blockDim.y;
  for (int64_t row = int64_t{blockIdx.x} * blockDim.y + threadIdx.y;
       row < rows; row += step) {
    f(row, team);
    __syncwarp();
  }
}

class Machine {
 public:
  // Of the device of `like`, which has to be the current one (Guard).
  explicit Machine(const Tensor& like)
      : like_(like), stream_(current_stream(like.get_device_index())) {
    int device = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&processors_, cudaDevAttrMultiProcessorCount,
                                 device),
          "cudaDeviceGetAttribute");
  }

  // Memory of torch's allocator, which hands it out again, after the kernels
  // that use it, when the machine is gone.
  template <typename T>
  T* make(int64_t count) {
    const int64_t bytes = count * static_cast<int64_t>(sizeof(T));
    memory_.push_back(
        torch::stable::new_empty(like_, {bytes > 0 ? bytes : 1},
                                 torch::headeronly::ScalarType::Byte));
    return static_cast<T*>(memory_.back().data_ptr());
  }

  template <typename T>
  void zero(T* data, int64_t count) {
    if (count > 0)
      check(cudaMemsetAsync(data, 0, count * sizeof(T), stream_),
            "cudaMemsetAsync");
  }

  template <typename F>
  void run(int64_t rows,
           int64_t lanes,
           const F& f,
           const int64_t* count = nullptr) {
    if (rows <= 0 || lanes <= 0)
      return;
    if (rows == 1 && count == nullptr) {
      run_row_kernel<<<blocks(lanes, kThreads), kThreads, 0, stream_>>>(lanes,
                                                                        f);
    } else {
      const dim3 block = shape(lanes, 1);
      run_kernel<<<blocks(rows, block.y, count), block, 0, stream_>>>(
          rows, count, lanes, f);
    }
    check(cudaGetLastError(), "run");
  }

  template <int parts, typename T, typename Part, typename End>
  void run_parts(int64_t rows,
                 int64_t lanes,
                 const Part& part,
                 const End& end,
                 const int64_t* count = nullptr) {
    if (rows <= 0 || lanes <= 0)
      return;
    const dim3 block = shape(lanes, parts);
    parts_kernel<parts, T>
        <<<blocks(rows, block.y, count), block, 0, stream_>>>(
            rows, count, lanes, part, end);
    check(cudaGetLastError(), "run_parts");
  }

  template <typename F>
  void run_team(int64_t rows, const F& f) {
    if (rows <= 0)
      return;
    const dim3 block(device::kTeam, kThreads / device::kTeam);
    team_kernel<<<blocks(rows, block.y), block, 0, stream_>>>(rows, f);
    check(cudaGetLastError(), "run_team");
  }

  void sort(uint64_t* key, int64_t* value, int64_t count) {
    if (count <= 1)
      return;
    cub::DoubleBuffer<uint64_t> keys(key, make<uint64_t>(count));
    cub::DoubleBuffer<int64_t> values(value, make<int64_t>(count));
    size_t bytes = 0;
    const auto by = [&](void* memory) {
      return cub::DeviceRadixSort::SortPairs(memory, bytes, keys, values,
                                             count, 0, 64, stream_);
    };
    check(by(nullptr), "SortPairs");
    check(by(make<uint8_t>(static_cast<int64_t>(bytes))), "SortPairs");
    if (values.Current() != value)
      copy(value, values.Current(), count);
    if (keys.Current() != key)
      copy(key, keys.Current(), count);
  }

  void sum_before(int64_t* data, int64_t count) {
    if (count <= 0)
      return;
    auto* sums = make<int64_t>(count);
    size_t bytes = 0;
    const auto by = [&](void* memory) {
      return cub::DeviceScan::ExclusiveSum(memory, bytes, data, sums, count,
                                           stream_);
    };
    check(by(nullptr), "ExclusiveSum");
    check(by(make<uint8_t>(static_cast<int64_t>(bytes))), "ExclusiveSum");
    copy(data, sums, count);
  }

  // Waits for all that was started before.
  int64_t read(const int64_t* data) {
    int64_t value = 0;
    check(cudaMemcpyAsync(&value, data, sizeof(value), cudaMemcpyDeviceToHost,
                          stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return value;
  }

 private:
  // Blocks whose threads are neighbouring lanes of one or more rows.
  static dim3 shape(int64_t lanes, int parts) {
    const int64_t wide = lanes * parts < kThreads ? lanes * parts : kThreads;
    return dim3(static_cast<unsigned>(wide),
                static_cast<unsigned>(kThreads / wide));
  }

  // A thread for every row, as far as a grid reaches; where a count says how
  // many rows there are, as many as work at the same time.
  unsigned blocks(int64_t rows,
                  int64_t per_block,
                  const int64_t* counted = nullptr) const {
    const int64_t most = counted == nullptr
                             ? (int64_t{1} << 31) - 1
                             : int64_t{processors_} * (2048 / kThreads);
    const int64_t count = (rows + per_block - 1) / per_block;
    return static_cast<unsigned>(count < most ? count : most);
  }

  template <typename T>
  void copy(T* to, const T* from, int64_t count) {
    check(cudaMemcpyAsync(to, from, count * sizeof(T),
                          cudaMemcpyDeviceToDevice, stream_),
          "cudaMemcpyAsync");
  }

  const Tensor like_;
  const cudaStream_t stream_;
  int processors_ = 1;
  std::vector<Tensor> memory_;
};

// The device of `tensor` is the current one as long as it lives.
class Guard {
 public:
  explicit Guard(const Tensor& tensor) : guard_(tensor.get_device_index()) {
    // This library may have a CUDA runtime of its own.
    check(cudaSetDevice(tensor.get_device_index()), "cudaSetDevice");
  }

 private:
  const torch::stable::accelerator::DeviceGuard guard_;
};

}  // namespace pyg_trust::cuda
