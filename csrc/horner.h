// The arithmetic of one level of exact propagation, for host and device alike.
//
// z = sum_i w_i P^i x, P = R B S (R, S diagonal), goes from the last weight to
// the first (Horner): u_L = w_L x, u_i = w_i x + P u_{i+1}, z = u_0. What is
// stored is y_i = S u_i, so that a level sums stored rows as they are:
//
//   y_i = S (w_i x + R B y_{i+1}),   z = w_0 x + R B y_1.
//
// For z = sum_j c_j T_j(P) x in Chebyshev polynomials it is Clenshaw's
// recursion, u_j = c_j x + 2 P u_{j+1} - u_{j+2}, z = c_0 x + P u_1 - u_2. Of
// u_{j+2} a row needs itself alone, so that it is overwritten in place.
//
// Each function is one rounding after the other, none of them fused.
#pragma once

#include <cstdint>

#include "rng.h"

namespace pyg_trust {

// How far a level is from the next: P counts once or, in the inner levels of
// Clenshaw's recursion, twice.
PYG_TRUST_HD inline double level_factor(bool three_term, int64_t level) {
  return three_term && level > 0 ? 2.0 : 1.0;
}

// What the coefficients make of a node that has no neighbours, where P = 0:
// p(0), of which x is multiplied.
inline double at_zero(const double* weights, int64_t count, bool three_term) {
  if (!three_term)
    return weights[0];
  double sum = 0;  // T_j(0) = 1, 0, -1, 0, ...
  for (int64_t j = 0; j < count; j += 2)
    sum += j % 4 == 0 ? weights[j] : -weights[j];
  return sum;
}

}  // namespace pyg_trust
