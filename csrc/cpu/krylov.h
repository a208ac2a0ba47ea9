// Steps of the solver of a policy's linear systems (policy_system.h), for the
// instruction set of the file that includes this. Vectors are padded with zeros
// to whole cache lines; each of its eight numbers has a sum of its own, so that
// the bits are the same for all registers.
#pragma once

#include "gather.h"
#include "kernels.h"

namespace pyg_trust {
namespace {

constexpr int kLine = kCacheLine / int{sizeof(double)};
constexpr int kPart = kVectorBytes / int{sizeof(double)};
constexpr int kParts = kLine / kPart;
using Part = Vector<double, kPart>::type;

PYG_TRUST_INLINE Part magnitude(const Part& value) {
  return value < 0 ? -value : value;
}

PYG_TRUST_INLINE Part larger(const Part& a, const Part& b) {
  return a > b ? a : b;
}

PYG_TRUST_INLINE double total_of(const Part (&value)[kParts]) {
  double sum = 0;
  for (int k = 0; k < kLine; ++k)
    sum += value[k / kPart][k % kPart];
  return sum;
}

PYG_TRUST_INLINE double largest_of(const Part (&value)[kParts]) {
  double most = 0;
  for (int k = 0; k < kLine; ++k) {
    const double next = value[k / kPart][k % kPart];
    most = most < next ? next : most;
  }
  return most;
}

// Calls run(i, part) for every part of the vectors, which starts at i.
template <typename Run>
PYG_TRUST_INLINE void each_part(int64_t n, const Run& run) {
  for (int64_t i = 0; i < n; i += kLine)
    for (int p = 0; p < kParts; ++p)
      run(i + p * kPart, p);
}

#define PYG_TRUST_EACH [&](int64_t i, int p) __attribute__((always_inline))

inline double dot(const double* x, const double* y, int64_t n) {
  Part sum[kParts] = {};
  each_part(n, PYG_TRUST_EACH {
    sum[p] += load<kPart>(x + i) * load<kPart>(y + i);
  });
  return total_of(sum);
}

inline double subtract(const double* b,
                       const double* image,
                       const double* x,
                       double* out,
                       int64_t n) {
  Part most[kParts] = {};
  each_part(n, PYG_TRUST_EACH {
    const Part made =
        load<kPart>(b + i) + load<kPart>(image + i) - load<kPart>(x + i);
    store<kPart>(out + i, made);
    most[p] = larger(magnitude(made), most[p]);
  });
  return largest_of(most);
}

inline void turn(const double* residual,
                 double beta,
                 double omega,
                 const double* image,
                 double* direction,
                 int64_t n) {
  each_part(n, PYG_TRUST_EACH {
    static_cast<void>(p);
    store<kPart>(direction + i,
                 load<kPart>(residual + i) +
                     beta * (load<kPart>(direction + i) -
                             omega * load<kPart>(image + i)));
  });
}

inline Products reflect(const double* x,
                        const double* left,
                        double* image,
                        int64_t n) {
  Part sum[kParts] = {}, square[kParts] = {};
  each_part(n, PYG_TRUST_EACH {
    const Part made = load<kPart>(x + i) - load<kPart>(image + i);
    store<kPart>(image + i, made);
    sum[p] += load<kPart>(left + i) * made;
    square[p] += made * made;
  });
  return {total_of(sum), total_of(square)};
}

inline void move(const double* x,
                 double factor,
                 const double* y,
                 double* out,
                 int64_t n) {
  each_part(n, PYG_TRUST_EACH {
    static_cast<void>(p);
    store<kPart>(out + i, load<kPart>(x + i) - factor * load<kPart>(y + i));
  });
}

inline Moved advance_solution(double size,
                              const double* direction,
                              double omega,
                              const double* half,
                              const double* moved,
                              const double* shadow,
                              double* x,
                              double* residual,
                              int64_t n) {
  Part most[kParts] = {}, sum[kParts] = {};
  each_part(n, PYG_TRUST_EACH {
    const Part middle = load<kPart>(half + i);
    store<kPart>(x + i, load<kPart>(x + i) + size * load<kPart>(direction + i) +
                            omega * middle);
    const Part left = middle - omega * load<kPart>(moved + i);
    store<kPart>(residual + i, left);
    most[p] = larger(magnitude(left), most[p]);
    sum[p] += left * load<kPart>(shadow + i);
  });
  return {largest_of(most), total_of(sum)};
}

#undef PYG_TRUST_EACH

}  // namespace
}  // namespace pyg_trust
