#include "ops/descale_checks.hpp"

#include <array>
#include <string>

#include "common/ceil_div.hpp"
#include "common/columns.hpp"
#include "ops/attention_checks.hpp"

namespace tilewright {
namespace {

constexpr std::array kBatchedColumns = {"batch", "heads", "head_dim", "columns"};
constexpr std::array kPackedColumns = {"heads", "head_dim", "columns"};
constexpr std::array kBatchedBlocks = {"batch", "heads", "blocks"};
constexpr std::array kPackedBlocks = {"heads", "blocks"};
constexpr Form kColumns{kBatchedColumns, kPackedColumns};

// How many blocks of `rows` rows there are of a sequence; packed: of all of them together.
std::int64_t block_count(std::int64_t length, std::int64_t rows, std::int64_t batch,
                         bool is_packed) {
  return is_packed ? length / rows + batch : ceil_div(length, rows);
}

}  // namespace

void check_columns(const char* argument, const ConstTensorView& columns, const RowsLike& like) {
  check_form(argument, columns, kColumns, like.cu_seqlens, like.is_packed);
  check_last_dim_is_contiguous(argument, columns, "columns must be");
  const int heads = columns.rank - 3;
  if (!like.is_packed) {
    check_same(argument, "batch", columns.shape[0], {like.name, "'s"}, like.rows.shape[0]);
  }
  check_same(argument, "heads", columns.shape[heads], {like.name, "'s"}, heads_of(like.rows));
}

void check_column_count(const char* argument, const ConstTensorView& columns, const RowsLike& like,
                        std::int64_t batch) {
  const std::int64_t count = columns.shape[columns.rank - 1];
  const std::int64_t rows = seqlen_of(like.rows);
  const std::int64_t least =
      kColumnMultiple * block_count(rows, kColumnMultiple, batch, like.is_packed);
  if (count < least || count % kColumnMultiple != 0) {
    fail(argument,
         "has " + std::to_string(count) + " columns, must have a multiple of " +
             std::to_string(kColumnMultiple) + ", and at least " + std::to_string(least) + " for " +
             like.name + "'s " + std::to_string(rows) + " rows" +
             (like.is_packed ? " of " + std::to_string(batch) + " packed sequences" : ""));
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
             block_count(sizes.length, sizes.descale_rows, sizes.batch, sizes.is_packed));
}

}  // namespace tilewright
