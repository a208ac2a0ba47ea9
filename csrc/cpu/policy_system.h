// Linear systems of a policy on the CPU: what a policy makes of a graph, and
// the solution of x = b + a P~ x, for one thread. Every column has a graph of
// its own.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include "gather.h"
#include "parallel.h"

namespace pyg_trust {
namespace {

constexpr int kMaxKrylov = 200;
constexpr int kMaxStale = 10;

// Rows (ptr, node), views of somebody's arrays.
struct Rows {
  const int64_t* ptr;
  const int32_t* node;

  int64_t size(int64_t i) const { return ptr[i + 1] - ptr[i]; }
  const int32_t* begin(int64_t i) const { return node + ptr[i]; }
  const int32_t* end(int64_t i) const { return node + ptr[i + 1]; }
};

// What a policy makes of the clean graph: the edges that are gone, how many of
// each row, and those that are new, by row.
struct Change {
  std::vector<uint8_t> gone;
  std::vector<int32_t> lost;
  std::vector<int64_t> new_ptr;
  std::vector<int32_t> new_node;

  void clear(int64_t num_nodes, int64_t num_edges) {
    gone.assign(num_edges, 0);
    lost.assign(num_nodes, 0);
    new_ptr.assign(1, 0);
    new_node.clear();
  }

  Rows added() const { return {new_ptr.data(), new_node.data()}; }

  bool operator==(const Change&) const = default;
};

// Vectors, padded with zeros to whole cache lines ///////////////////////////

using Values = std::vector<double>;

int64_t padded(int64_t n) {
  constexpr int64_t line = kCacheLine / sizeof(double);
  return (n + line - 1) / line * line;
}

// Steps of the solver. Each of the eight numbers of a cache line has a sum of
// its own, so that the bits are the same for all registers.
constexpr int kLine = kCacheLine / int{sizeof(double)};
constexpr int kPart = 4;
constexpr int kParts = kLine / kPart;
using Part = Vector<double, kPart>::type;

struct Products {
  double with_other, with_itself;
};
struct Moved {
  double largest;  // magnitude of the residual
  double along;    // its product with the shadow
};

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

PYG_TRUST_CLONES double dot(const double* x, const double* y, int64_t n) {
  Part sum[kParts] = {};
  each_part(n, PYG_TRUST_EACH {
    sum[p] += load<kPart>(x + i) * load<kPart>(y + i);
  });
  return total_of(sum);
}

// out = b + image - x; the largest magnitude.
PYG_TRUST_CLONES double subtract(const double* b,
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

// direction = residual + beta (direction - omega image).
PYG_TRUST_CLONES void turn(const double* residual,
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

// image = x - image; its products with `left` and with itself.
PYG_TRUST_CLONES Products reflect(const double* x,
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

// out = x - factor y.
PYG_TRUST_CLONES void move(const double* x,
                 double factor,
                 const double* y,
                 double* out,
                 int64_t n) {
  each_part(n, PYG_TRUST_EACH {
    static_cast<void>(p);
    store<kPart>(out + i, load<kPart>(x + i) - factor * load<kPart>(y + i));
  });
}

// x += size direction + omega half; residual = half - omega moved.
PYG_TRUST_CLONES Moved advance_solution(double size,
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

// Zero stops a column that has converged to nothing or broken down.
double quotient(double numerator, double denominator) {
  const double ratio = numerator / denominator;
  return std::isfinite(ratio) ? ratio : 0.0;
}

// Linear systems of a policy /////////////////////////////////////////////////

// a P~ or its transpose, for one policy after another: the clean graph with
// some edges flipped. Rows are laid out by their size, so that the inner loop
// has a known length.
class Operator {
 public:
  Operator(const Rows& clean, int64_t num_nodes, double follow)
      : clean_(clean),
        n_(num_nodes),
        follow_(follow),
        size_(num_nodes),
        row_(num_nodes) {}

  void set(const Change& change) {
    const Rows added = change.added();
    int64_t most = 0;
    for (int64_t i = 0; i < n_; ++i) {
      size_[i] = clean_.size(i) - change.lost[i] + added.size(i);
      most = std::max(most, size_[i]);
    }
    start_.assign(most + 2, 0);
    for (int64_t i = 0; i < n_; ++i)
      ++start_[size_[i] + 1];
    groups_.clear();
    int64_t entries = 0;
    for (int64_t size = 0; size <= most; ++size) {
      const int64_t count = start_[size + 1];
      start_[size + 1] += start_[size];
      if (count > 0 && size > 0)
        groups_.push_back({size, start_[size], count, entries});
      entries += count * size;
    }
    for (int64_t i = 0; i < n_; ++i)
      row_[start_[size_[i]]++] = static_cast<int32_t>(i);
    node_.resize(entries + 1);  // one more, which compaction may write to
    isolated_ = groups_.empty() ? n_ : groups_.front().first;
    int32_t* out = node_.data();
    for (int64_t k = isolated_; k < n_; ++k) {
      const int64_t i = row_[k];
      if (change.lost[i] == 0) {
        out = std::copy(clean_.begin(i), clean_.end(i), out);
      } else {
        for (int64_t e = clean_.ptr[i]; e < clean_.ptr[i + 1]; ++e) {
          *out = clean_.node[e];
          out += !change.gone[e];
        }
      }
      out = std::copy(added.begin(i), added.end(i), out);
    }
  }

  // How many edges leave row i.
  int64_t size(int64_t i) const { return size_[i]; }

  // out = a P~ x.
  void apply(const Values& x, Values& out) const {
    for (int64_t k = 0; k < isolated_; ++k)
      out[row_[k]] = 0;
    const double* from = x.data();
    each_group([&](auto length, const Group& group) {
      const double scale = follow_ / static_cast<double>(group.size);
      const int32_t* node = node_.data() + group.entry;
      const int32_t* row = row_.data() + group.first;
      for (int64_t k = 0; k < group.count; ++k, node += length) {
        double sum = 0;
        for (int64_t e = 0; e < length; ++e)
          sum += from[node[e]];
        out[row[k]] = scale * sum;
      }
    });
  }

  // out = a P~' x.
  void apply_back(const Values& x, Values& out) const {
    std::fill(out.begin(), out.end(), 0.0);
    double* to = out.data();
    each_group([&](auto length, const Group& group) {
      const double scale = follow_ / static_cast<double>(group.size);
      const int32_t* node = node_.data() + group.entry;
      const int32_t* row = row_.data() + group.first;
      for (int64_t k = 0; k < group.count; ++k, node += length) {
        const double sent = scale * x[row[k]];
        for (int64_t e = 0; e < length; ++e)
          to[node[e]] += sent;
      }
    });
  }

  // Calls end(i, sum) with the sum of x over each row i: see policy.h.
  template <typename End>
  void exact_sums(const Values& x, const End& end) const {
    for (int64_t k = 0; k < isolated_; ++k)
      end(row_[k], Sum{});
    each_group([&](auto length, const Group& group) {
      const int32_t* node = node_.data() + group.entry;
      const int32_t* row = row_.data() + group.first;
      for (int64_t k = 0; k < group.count; ++k, node += length) {
        Sum sum;
        for (int64_t e = 0; e < length; ++e)
          sum.add(x[node[e]]);
        end(row[k], sum);
      }
    });
  }

 private:
  struct Group {
    int64_t size, first, count, entry;
  };

  // Calls run(length, group), with a constant where rows are short.
  template <typename Run>
  void each_group(const Run& run) const {
    const auto short_ones = [&]<int64_t... size>(
                                const Group& group,
                                std::integer_sequence<int64_t, 0, size...>) {
      return ((group.size == size &&
               (run(std::integral_constant<int64_t, size>{}, group), true)) ||
              ...);
    };
    for (const Group& group : groups_)
      if (!short_ones(group, std::make_integer_sequence<int64_t, 7>{}))
        run(group.size, group);
  }

  const Rows clean_;
  const int64_t n_;
  const double follow_;
  std::vector<int64_t> size_, start_;
  std::vector<int32_t> row_, node_;
  std::vector<Group> groups_;
  int64_t isolated_ = 0;
};

// Solves x = b + a P~ x to a largest residual of `tol`, as far as roundoff
// lets it: BiCGSTAB, then plain iteration, whose residual falls by a per step
// whatever the graph.
class Solver {
 public:
  explicit Solver(int64_t num_nodes) : n_(padded(num_nodes)) {
    for (Values* vector : {&first_, &residual_, &shadow_, &direction_, &image_,
                           &half_, &moved_})
      vector->assign(n_, 0.0);
  }

  template <typename Apply>
  void run(const Apply& apply, const Values& b, double tol, Values& x) {
    krylov(apply, b, tol, x);
    double best = std::numeric_limits<double>::infinity();
    int stale = 0;
    while (true) {
      apply(x, image_);
      const double left = subtract(b.data(), image_.data(), x.data(),
                                       residual_.data(), n_);
      stale = left < best ? 0 : stale + 1;
      if (left <= tol || stale > kMaxStale)
        return;
      move(x.data(), -1.0, residual_.data(), x.data(), n_);
      best = std::min(best, left);
    }
  }

 private:
  template <typename Apply>
  void krylov(const Apply& apply, const Values& b, double tol, Values& x) {
    first_ = x;
    apply(x, image_);
    const double initial = subtract(b.data(), image_.data(), x.data(),
                                        residual_.data(), n_);
    double left = initial;
    shadow_ = residual_;
    std::fill(direction_.begin(), direction_.end(), 0.0);
    std::fill(image_.begin(), image_.end(), 0.0);
    double rho = 1, size = 1, omega = 1;
    double rho_next = dot(shadow_.data(), residual_.data(), n_);
    for (int k = 0; k < kMaxKrylov && !(left <= tol); ++k) {
      const double beta = quotient(rho_next * size, rho * omega);
      turn(residual_.data(), beta, omega, image_.data(), direction_.data(),
               n_);
      apply(direction_, image_);
      const Products made = reflect(direction_.data(), shadow_.data(),
                                        image_.data(), n_);
      size = quotient(rho_next, made.with_other);
      move(residual_.data(), size, image_.data(), half_.data(), n_);
      apply(half_, moved_);
      const Products next =
          reflect(half_.data(), half_.data(), moved_.data(), n_);
      omega = quotient(next.with_other, next.with_itself);
      rho = rho_next;
      const Moved moved = advance_solution(
          size, direction_.data(), omega, half_.data(), moved_.data(),
          shadow_.data(), x.data(), residual_.data(), n_);
      left = moved.largest;
      rho_next = moved.along;
    }
    if (!(left <= initial))  // it broke down
      x = first_;
  }

  const int64_t n_;
  Values first_, residual_, shadow_, direction_, image_, half_, moved_;
};

}  // namespace
}  // namespace pyg_trust
