// Pushing the residues of an infinite series, in rows that can be edited.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <optional>
#include <tuple>
#include <vector>

#include "gather.h"
#include "open_rows.h"
#include "pull.h"
#include "scratch.h"

namespace pyg_trust {
namespace {

using torch::stable::Tensor;

// Rows to fetch before they are needed.
constexpr int64_t kPushAhead = 4;
constexpr int64_t kReadAhead = 2;

constexpr int64_t kLanes = 8;
using Lanes = Vector<double, kLanes>::type;

PYG_TRUST_INLINE void prefetch(const double* row, int64_t columns) {
  for (int64_t c = 0; c < columns; c += kCacheLine / sizeof(double))
    __builtin_prefetch(row + c, 1);
}

// Row += weight * moved, if it `adds`; returns the square of its norm. The row
// as it was is copied, unless `kept` is null. Sums side by side, of every 32nd
// column: one after the other they take as long as the row from memory.
template <bool adds>
PYG_TRUST_INLINE double add_and_square(double* row,
                                       const double* moved,
                                       double weight,
                                       int64_t columns,
                                       double* kept) {
  constexpr int64_t unrolled = 4;
  Lanes sums[unrolled] = {};
  const auto add = [&](int64_t c, int64_t k) __attribute__((always_inline)) {
    Lanes r = load<kLanes>(row + c);
    if (kept != nullptr)
      store<kLanes>(kept + c, r);
    if constexpr (adds) {
      r += weight * load<kLanes>(moved + c);
      store<kLanes>(row + c, r);
    }
    sums[k] += r * r;
  };
  int64_t c = 0;
  for (; c + unrolled * kLanes <= columns; c += unrolled * kLanes)
    for (int64_t k = 0; k < unrolled; ++k)
      add(c + k * kLanes, k);
  for (; c + kLanes <= columns; c += kLanes)
    add(c, 0);
  double square = 0;
  for (; c < columns; ++c) {
    if (kept != nullptr)
      kept[c] = row[c];
    if constexpr (adds)
      row[c] += weight * moved[c];
    square += row[c] * row[c];
  }
  const Lanes all = (sums[0] + sums[1]) + (sums[2] + sums[3]);
  square += ((all[0] + all[1]) + (all[2] + all[3])) +
            ((all[4] + all[5]) + (all[6] + all[7]));
  return square;
}

// out = own * x(v) - z(v) + the sum over row v of weight * send[u] * z(u).
PYG_TRUST_CLONES void residue_of(const int32_t* row,
                                 int64_t length,
                                 const double* send,
                                 double weight,
                                 double own,
                                 const double* x,
                                 const double* mine,
                                 const double* z,
                                 int64_t columns,
                                 double* out) {
  in_tiles<double>(0, columns, PYG_TRUST_WIDTH(first) {
    constexpr int lanes = width < kLanes ? width : kLanes;
    typename Vector<double, lanes>::type sums[width / lanes] = {};
    for (int64_t e = 0; e < length; ++e) {
      const double* from = z + row[e] * columns + first;
      const double share = send[row[e]];
      if (first == 0 && e + kReadAhead < length)
        prefetch(z + row[e + kReadAhead] * columns, columns);
      for (int k = 0; k < width / lanes; ++k)
        sums[k] += share * load<lanes>(from + k * lanes);
    }
    for (int k = 0; k < width / lanes; ++k) {
      const int64_t c = first + k * lanes;
      store<lanes>(out + c, own * load<lanes>(x + c) + weight * sums[k] -
                                load<lanes>(mine + c));
    }
  });
}

// Rows as they were, each node's once.
struct KeptRows {
  int64_t columns;
  std::vector<double> rows;

  // Where the next one goes, until another one does.
  double* next() {
    rows.resize(rows.size() + columns);
    return rows.data() + (rows.size() - columns);
  }

  Tensor tensor(const Tensor& like) const {
    const auto size = static_cast<int64_t>(rows.size());
    const int64_t count = columns > 0 ? size / columns : 0;
    Tensor made = torch::stable::new_empty(like, {count, columns});
    std::copy(rows.begin(), rows.end(), made.mutable_data_ptr<double>());
    return made;
  }
};

// By node: whether its residue is kept, it is in the queue, its z is kept.
constexpr int8_t kMet = 1, kQueued = 2, kPushed = 4;

class Pushes {
 public:
  Pushes(const OpenRows& rows,
         const Tensor& recv,
         const Tensor& send,
         double theta,
         double follow,
         const Tensor& z,
         const Tensor& residue)
      : rows_(rows),
        recv_(recv.const_data_ptr<double>()),
        send_(send.const_data_ptr<double>()),
        least_(theta * theta),
        follow_(follow),
        columns_(z.size(1)),
        z_(z.mutable_data_ptr<double>()),
        left_(residue.mutable_data_ptr<double>()),
        met_(z.size(0), Pages::kSmall),
        moved_(columns_),
        old_z_{columns_, {}},
        old_r_{columns_, {}} {}

  // The residue of a seed, computed from the signal x if there is one.
  void begin(int64_t v, const double* x, double alpha) {
    double* r = left_ + v * columns_;
    if (x != nullptr) {
      if (double* kept = meet(v))
        std::copy(r, r + columns_, kept);
      residue_of(rows_.col + rows_.start[v], rows_.length[v], send_,
                 follow_ * recv_[v], alpha, x + v * columns_,
                 z_ + v * columns_, z_, columns_, r);
    }
    if (!large(v, square(r)))
      return;
    if (double* kept = meet(v))
      std::copy(r, r + columns_, kept);
    enqueue(v);
  }

  void run() {
    for (; !queue_.empty(); ++count_) {
      const int64_t v = queue_.front();
      queue_.pop_front();
      if (!queue_.empty())
        announce(queue_.front());
      push(v);
    }
  }

  std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t> result(
      const Tensor& nodes,
      const Tensor& rows) {
    return {to_tensor(nodes_, nodes), old_r_.tensor(rows),
            to_tensor(pushed_, nodes), old_z_.tensor(rows), count_};
  }

 private:
  static PYG_TRUST_CLONES double square_of(const double* row,
                                           int64_t columns) {
    return add_and_square<false>(const_cast<double*>(row), nullptr, 0, columns,
                                 nullptr);
  }

  double square(const double* row) const { return square_of(row, columns_); }

  bool large(int64_t v, double square) const {
    const int64_t degree = std::max<int64_t>(rows_.length[v], 1);
    return square > least_ * static_cast<double>(degree);
  }

  // Where its residue is to be kept, if it is not.
  double* meet(int64_t v) {
    if ((met_[v] & kMet) != 0)
      return nullptr;
    met_[v] |= kMet;
    nodes_.push_back(v);
    return old_r_.next();
  }

  void enqueue(int64_t v) {
    if ((met_[v] & kQueued) == 0) {
      met_[v] |= kQueued;
      queue_.push_back(v);
    }
  }

  void announce(int64_t v) const {
    prefetch(left_ + v * columns_, columns_);
    prefetch(z_ + v * columns_, columns_);
    __builtin_prefetch(rows_.col + rows_.start[v]);
  }

  void push(int64_t v) {
    double* r = left_ + v * columns_;
    double* z = z_ + v * columns_;
    if ((met_[v] & kPushed) == 0) {
      pushed_.push_back(v);
      std::copy(z, z + columns_, old_z_.next());
    }
    met_[v] = kMet | kPushed;
    const double share = follow_ * send_[v];
    for (int64_t c = 0; c < columns_; ++c) {
      z[c] += r[c];
      moved_[c] = share * r[c];
      r[c] = 0;
    }
    spread(*this, rows_.col + rows_.start[v], rows_.length[v]);
  }

  // What is moved goes to the nodes of a row.
  static PYG_TRUST_CLONES void spread(Pushes& all,
                                      const int32_t* row,
                                      int64_t length) {
    const int64_t columns = all.columns_;
    const double* moved = all.moved_.data();
    for (int64_t e = 0; e < length; ++e) {
      const int64_t u = row[e];
      if (e + kPushAhead < length)
        prefetch(all.left_ + row[e + kPushAhead] * columns, columns);
      double* r = all.left_ + u * columns;
      double* kept = all.meet(u);
      // Two loops: most rows are kept already, and theirs does not ask.
      const double size =
          kept == nullptr
              ? add_and_square<true>(r, moved, all.recv_[u], columns, nullptr)
              : add_and_square<true>(r, moved, all.recv_[u], columns, kept);
      if (all.large(u, size))
        all.enqueue(u);
    }
  }

  OpenRows rows_;
  const double *recv_, *send_;
  double least_, follow_;
  int64_t columns_;
  double *z_, *left_;
  Scratch<int8_t> met_;
  std::vector<int64_t> nodes_, pushed_;
  std::deque<int64_t> queue_;
  std::vector<double> moved_;
  KeptRows old_z_, old_r_;
  int64_t count_ = 0;
};

// Pushes residues until |R_v| <= theta sqrt(d_v) everywhere, d_v being how long
// row v is and at least 1: z_v += R_v, R_u += follow * recv[u] * send[v] * R_v
// for the nodes u in row v, and R_v = 0. With x, the residues of the seeds are
// computed first: alpha x_v + follow recv[v] sum_u send[u] z_u - z_v, over the
// entries u of row v. Returns the rows that changed, in the order in which they
// first did, as they were before: (node, R) and (node, z), the latter of those
// that were pushed; and the number of pushes.
std::tuple<Tensor, Tensor, Tensor, Tensor, int64_t> push_rows(
    const Tensor& start,
    const Tensor& length,
    const Tensor& col,
    const Tensor& seeds,
    const Tensor& recv,
    const Tensor& send,
    double theta,
    double follow,
    const Tensor& z,
    const Tensor& residue,
    const std::optional<Tensor>& x,
    double alpha) {
  Pushes pushes(open_rows(start, length, col), recv, send, theta, follow, z,
                residue);
  const auto* from = seeds.const_data_ptr<int64_t>();
  const double* signal = x ? x->const_data_ptr<double>() : nullptr;
  for (int64_t k = 0; k < seeds.numel(); ++k)
    pushes.begin(from[k], signal, alpha);
  pushes.run();
  return pushes.result(seeds, z);
}

}  // namespace
}  // namespace pyg_trust

STABLE_TORCH_LIBRARY_IMPL(pyg_trust, CPU, m) {
  m.impl("push_rows", TORCH_BOX(&pyg_trust::push_rows));
}
