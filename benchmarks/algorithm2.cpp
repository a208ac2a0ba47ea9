// Algorithm 2 of Wang et al. 2021 as it stands: one coin per sampled edge, by
// geometric skips over groups of doubling degree and rejection. The yardstick
// of benchmarks/push.py, for queries from one node; not a part of the package.
#include <cmath>
#include <cstdint>
#include <random>
#include <vector>

extern "C" {

// `scale` may be null (a = 0). residue, next and z have n zeros; z is the
// result, and the indices of its entries go to `touched`. Returns how many.
int64_t algorithm2(const int64_t* rowptr,
                   const int32_t* col,
                   const float* scale,
                   const int64_t* group_ptr,
                   const int64_t* group_end,
                   const float* send,
                   const double* ratio,
                   const double* keep,
                   int64_t levels,
                   int64_t source,
                   float eps,
                   uint64_t seed,
                   float* residue,
                   float* next,
                   float* z,
                   int32_t* touched) {
  std::mt19937_64 engine(seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::vector<int32_t> frontier{static_cast<int32_t>(source)}, following;
  int64_t count = 0;
  residue[source] = 1;
  const auto add = [&](int32_t v, float amount) {
    if (next[v] == 0)
      following.push_back(v);
    next[v] += amount;
  };
  for (int64_t level = 0; level <= levels; ++level) {
    for (const int32_t u : frontier) {
      const float r = residue[u];
      residue[u] = 0;
      if (z[u] == 0)
        touched[count++] = u;
      z[u] += static_cast<float>(keep[level]) * r;
      if (level == levels)
        continue;
      const float c = static_cast<float>(ratio[level]) * send[u] * r;
      const auto sent = [&](int64_t e) {
        return scale == nullptr ? c : c * scale[e];
      };
      int64_t e = rowptr[u];
      const int64_t end = rowptr[u + 1];
      for (; e < end && sent(e) >= eps; ++e)
        add(col[e], sent(e));
      for (int64_t g = group_ptr[u]; g < group_ptr[u + 1] && e < end; ++g) {
        const int64_t stop = scale == nullptr ? end : group_end[g];
        if (stop <= e)
          continue;
        const double p = sent(e) / eps;
        const double skip = std::log1p(-p);
        for (;; ++e) {
          const double gap = std::floor(std::log(1 - uniform(engine)) / skip);
          if (!(gap < static_cast<double>(stop - e)))
            break;
          e += static_cast<int64_t>(gap);
          if (uniform(engine) * p < sent(e) / eps)
            add(col[e], eps);
        }
        e = stop;
      }
    }
    std::swap(residue, next);
    frontier.swap(following);
    following.clear();
  }
  return count;
}
}
