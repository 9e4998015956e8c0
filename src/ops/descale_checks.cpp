#include "ops/descale_checks.hpp"

#include <array>
#include <string>

#include "common/ceil_div.hpp"
#include "ops/attention_checks.hpp"

namespace tilewright {
namespace {

constexpr std::int64_t kColumnMultiple = 16;
constexpr std::array kBatchedColumns = {"batch", "heads", "head_dim", "columns"};
constexpr std::array kPackedColumns = {"heads", "head_dim", "columns"};
constexpr std::array kBatchedBlocks = {"batch", "heads", "blocks"};
constexpr std::array kPackedBlocks = {"heads", "blocks"};
constexpr Form kColumns{kBatchedColumns, kPackedColumns};

}  // namespace

void check_columns(const char* argument, const ConstTensorView& columns, const RowsLike& like) {
  check_form(argument, columns, kColumns, like.cu_seqlens, like.is_packed);
  check_last_dim_is_contiguous(argument, columns, "columns must be");
  const int heads = columns.rank - 3;
  if (!like.is_packed) {
    check_same(argument, "batch", columns.shape[0], {like.name, "'s"}, like.rows.shape[0]);
  }
  check_same(argument, "heads", columns.shape[heads], {like.name, "'s"}, heads_of(like.rows));
  const std::int64_t count = columns.shape[heads + 2];
  const std::int64_t rows = seqlen_of(like.rows);
  if (count < rows || count % kColumnMultiple != 0) {
    fail(argument, "has " + std::to_string(count) + " columns, must have a multiple of 16, and " +
                       like.name + "'s " + std::to_string(rows) + " rows at least");
  }
}

void check_descale_rows(int descale_rows, const char* must_be) {
  if (descale_rows != 64 && descale_rows != 128) {
    fail("descale_rows",
         "is " + std::to_string(descale_rows) + ", must be " + std::string(must_be));
  }
}

void check_blocks(const char* argument, const ConstTensorView& descale, const BlockSizes& sizes) {
  const std::string rows = std::to_string(sizes.descale_rows);
  if (sizes.is_packed) {
    check_tensor(argument, descale, kPackedBlocks,
                 {", as rows are packed and descale_rows is ", rows});
  } else {
    check_tensor(argument, descale, kBatchedBlocks, {", as descale_rows is ", rows});
    check_same(argument, "batch", descale.shape[0], sizes.rows_name, sizes.batch);
  }
  check_same(argument, "heads", descale.shape[descale.rank - 2], sizes.rows_name, sizes.heads);
  check_same(argument, "blocks", descale.shape[descale.rank - 1], {"those of ", rows, " rows,"},
             sizes.is_packed ? sizes.length / sizes.descale_rows + sizes.batch
                             : ceil_div(sizes.length, std::int64_t{sizes.descale_rows}));
}

}  // namespace tilewright
