// The kernels for AVX-512.
#include "kernels.h"

#ifdef PYG_TRUST_X86
#include <immintrin.h>

#include <cstring>

// All that is compiled from here on. Headers of others stand above, so that no
// function that other files share is compiled with instructions that not every
// processor has.
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx2,f16c"))), \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx2,f16c")
#endif
#define PYG_TRUST_F16C
#define PYG_TRUST_VECTOR_BYTES 64
#define PYG_TRUST_AVX512F
#include "rows.h"

PYG_TRUST_KERNELS(kAvx512Kernels, 2)
#ifdef __clang__
#pragma clang attribute pop
#endif
#endif
