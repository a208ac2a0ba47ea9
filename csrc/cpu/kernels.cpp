#include "kernels.h"

#include <torch/csrc/stable/library.h>

#include <cstdlib>
#include <string>

namespace pyg_trust {
namespace {

const Kernels& choose() {
#ifdef PYG_TRUST_X86
  const char* wish = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string most = wish == nullptr ? "" : wish;
  __builtin_cpu_init();
  const bool avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  if (most == "default" || !avx2)
    return kBaseKernels;
  if (most == "avx2" || !__builtin_cpu_supports("avx512f"))
    return kAvx2Kernels;
  return kAvx512Kernels;
#else
  return kBaseKernels;
#endif
}

int64_t instruction_set() {
  return kernels().level;
}

}  // namespace

const Kernels& kernels() {
  static const Kernels& chosen = choose();
  return chosen;
}

}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CompositeExplicitAutograd, m) {
  m.impl("instruction_set", TORCH_BOX(&pyg_trust::instruction_set));
}
