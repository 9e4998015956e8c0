// A row of attention in float64, which the oracles of attention share.
#pragma once

#include <cstdint>
#include <vector>

#include "reference/attention.hpp"

namespace tilewright::reference {

// A function of a query and a key of `dim` values. Scores come of their dot product.
using Product = double (*)(const double* q, const double* k, std::int64_t dim);
double dot(const double* q, const double* k, std::int64_t dim);

// What a row's softmax depends on beside its keys.
struct Scoring {
  double scale;
  double softcap;  // 0: none
  double sink;     // -infinity: none
  Rounding rounding;
  Product product = dot;
};

struct RowSums {
  double max;
  double sum;
};

// One query row against those keys of its head, by their numbers, that it sees: writes the
// un-normalised o. Key j is dim values from k + j * dim on, and its value likewise.
RowSums attend(const double* q, const double* k, std::int64_t dim, const double* v,
               std::int64_t value_dim, const std::vector<std::int64_t>& seen,
               const Scoring& scoring, double* o);

// Divides a row by its sum; it is 0 where that is.
void normalize(double* o, std::int64_t dim, double sum);

// Rounds a row that is stored.
void round_output(double* o, std::int64_t dim, Rounding rounding);

}  // namespace tilewright::reference
