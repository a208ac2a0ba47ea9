// Rows of one level of propagation, wherever they lie: what a change of the
// graph touches. The sums are those of the exact propagation, entry by entry
// in the same order (gather.h), so a row that is pulled again has the bits that
// a propagation from scratch gives it.
#pragma once

#include <cstdint>

namespace pyg_trust {

// Rows with room: row v is col[start[v]], ..., ascending, length[v] of them.
// Behind its end a row may have entries that are not in use.
struct OpenRows {
  const int64_t* start;
  const int64_t* length;
  const int32_t* col;
};

// Rows of a list may lie anywhere. So many rows before their entries are
// fetched, it is fetched where these are named, and before that, where they
// begin.
constexpr int64_t kNamedAhead = 4;
constexpr int64_t kBeginAhead = 8;

// y(v) = recv[v] * (the sum of in(u) over row v), for the rows v in a list.
template <typename scalar_t>
struct Pull {
  OpenRows rows;
  const int64_t* list;  // of rows, or null for all
  const scalar_t* in;   // what is sent, `columns` numbers a row
  bool near;            // whether it stays in the cache: nothing is fetched
  int64_t columns;
  const scalar_t* recv;
  const scalar_t* send;
  scalar_t* out;  // row v becomes send[v] * y(v), if not null
  scalar_t* z;    // if not null: row k += weight * y(list[k])
  scalar_t weight;
};

}  // namespace pyg_trust
