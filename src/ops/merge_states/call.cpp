// A call of merge_states(): its checks, what it asks for, and how kernels receive it.
#include "ops/call.hpp"

#include <array>

#include "ops/attention_strides.hpp"
#include "ops/merge_states/params.hpp"
#include "ops/overlap.hpp"
#include "tilewright/merge_states.hpp"

namespace tilewright {
namespace {

constexpr std::array kPartRows = {"parts", "tokens", "heads", "head_dim"};
constexpr std::array kPartStatistics = {"parts", "heads", "tokens"};
constexpr DimNames kRows = DimNames(kPartRows).last<3>();
constexpr DimNames kStatistics = DimNames(kPartStatistics).last<2>();
constexpr std::array kHeads = {"heads"};

// Checks which of the statistics are given: a form of the parts, and one of the result.
void check_forms(const MergeStatesTensors& t) {
  check_both_or_none("row_max", t.row_max.has_value(), "row_sum", t.row_sum.has_value());
  check_both_or_none("row_max_out", t.row_max_out.has_value(), "row_sum_out",
                     t.row_sum_out.has_value());
  if (t.lse && t.row_max) {
    fail("lse", "is given, must be absent where row_max and row_sum are given");
  }
  if (!t.lse && !t.row_max) {
    fail("lse", "is absent, must be given where row_max and row_sum are absent");
  }
  if (t.row_max_out && !t.row_max) {
    fail("row_max_out", "is given, must be absent where lse is: normalised parts have no maximum");
  }
}

void check_o(const MergeStatesTensors& t) {
  check_tensor("o", t.o, kPartRows);
  check_last_dim_is_contiguous("o", t.o, "head_dim must be");
  check_is_float("o", t.o);
  if (t.row_max) {
    check_dtype("o", t.o, DType::fp32, ", as row_max and row_sum are given");
  }
}

void check_out(const MergeStatesTensors& t) {
  check_tensor("out", t.out, kRows);
  check_last_dim_is_contiguous("out", t.out, "head_dim must be");
  check_device("out", t.out, t.o.device, "o");
  for (int i = 0; i < t.out.rank; ++i) {
    check_same("out", kRows[static_cast<std::size_t>(i)], t.out.shape[i], "o's", t.o.shape[i + 1]);
  }
  if (t.row_max_out) {
    check_dtype("out", t.out, DType::fp32, ", as row_max_out and row_sum_out are given");
  } else if (t.o.dtype == DType::fp32) {
    check_is_float("out", t.out);
  } else {
    check_dtype("out", t.out, t.o.dtype, ", the dtype of o");
  }
  check_no_overlap("out", t.out);
}

// Checks a statistic of the rows, with parts or without.
void check_statistic(const char* argument, const std::optional<ConstTensorView>& statistic,
                     const MergeStatesTensors& t, DimNames dims) {
  if (!statistic) {
    return;
  }
  check_tensor(argument, *statistic, dims);
  check_dtype(argument, *statistic, DType::fp32);
  check_device(argument, *statistic, t.o.device, "o");
  const int last = statistic->rank - 1;
  if (last == 2) {
    check_same(argument, "parts", statistic->shape[0], "o's", t.o.shape[0]);
  }
  check_same(argument, "heads", statistic->shape[last - 1], "o's", t.o.shape[2]);
  check_same(argument, "tokens", statistic->shape[last], "o's", t.o.shape[1]);
}

void check_statistics(const MergeStatesTensors& t) {
  check_statistic("lse", t.lse, t, kPartStatistics);
  check_statistic("row_max", t.row_max, t, kPartStatistics);
  check_statistic("row_sum", t.row_sum, t, kPartStatistics);
  const auto check = [&](const char* argument, const std::optional<TensorView>& output) {
    check_statistic(argument, output, t, kStatistics);
    if (output) {
      check_no_overlap(argument, *output);
    }
  };
  check("lse_out", t.lse_out);
  check("row_max_out", t.row_max_out);
  check("row_sum_out", t.row_sum_out);
}

void check_sinks(const MergeStatesTensors& t) {
  if (t.sinks) {
    check_tensor("sinks", *t.sinks, kHeads);
    check_dtype("sinks", *t.sinks, DType::fp32);
    check_device("sinks", *t.sinks, t.o.device, "o");
    check_same("sinks", "heads", t.sinks->shape[0], "o's", t.o.shape[2]);
  }
}

void check_outputs_are_apart(const MergeStatesTensors& t) {
  const auto check = [&](const char* argument, const std::optional<TensorView>& output,
                         std::initializer_list<OtherTensor> outputs_behind) {
    if (output) {
      check_is_apart(argument, *output,
                     {{"o", t.o},
                      {"lse", t.lse},
                      {"row_max", t.row_max},
                      {"row_sum", t.row_sum},
                      {"sinks", t.sinks}});
      check_is_apart(argument, *output, outputs_behind);
    }
  };
  const OtherTensor row_max_out{"row_max_out", t.row_max_out};
  const OtherTensor row_sum_out{"row_sum_out", t.row_sum_out};
  check("out", t.out, {{"lse_out", t.lse_out}, row_max_out, row_sum_out});
  check("lse_out", t.lse_out, {row_max_out, row_sum_out});
  check("row_max_out", t.row_max_out, {row_sum_out});
  check("row_sum_out", t.row_sum_out, {});
}

}  // namespace

void check_arguments(const MergeStatesTensors& t, const MergeStatesOptions&) {
  check_forms(t);
  check_o(t);
  check_out(t);
  check_statistics(t);
  check_sinks(t);
  check_outputs_are_apart(t);
}

void check_alignment(const MergeStatesTensors& t, const KernelInfo& kernel) {
  check_rows_are_aligned("o", t.o, kernel.alignment_bytes);
  check_rows_are_aligned("out", t.out, kernel.alignment_bytes);
  check_elements_are_aligned("lse", t.lse);
  check_elements_are_aligned("row_max", t.row_max);
  check_elements_are_aligned("row_sum", t.row_sum);
  check_elements_are_aligned("lse_out", t.lse_out);
  check_elements_are_aligned("row_max_out", t.row_max_out);
  check_elements_are_aligned("row_sum_out", t.row_sum_out);
  check_elements_are_aligned("sinks", t.sinks);
}

DeviceArgument device_of(const MergeStatesTensors& t) { return {"o", t.o.device}; }

MergeStatesProblem problem_of(const MergeStatesTensors& t, const MergeStatesOptions&) {
  return {.dtype = t.o.dtype,
          .parts = t.o.shape[0],
          .tokens = t.o.shape[1],
          .heads = t.o.shape[2],
          .head_dim = t.o.shape[3]};
}

MergeStatesParams params_of(const MergeStatesTensors& t, const MergeStatesOptions&,
                            const MergeStatesProblem& problem) {
  return {.o = t.o.data,
          .m = data_of<const float>(t.lse ? t.lse : t.row_max),
          .l = data_of<const float>(t.row_sum),
          .out = t.out.data,
          .lse_out = data_of<float>(t.lse_out),
          .statistics = {.max = data_of<float>(t.row_max_out),
                         .sum = data_of<float>(t.row_sum_out),
                         .max_stride = statistic_strides(t.row_max_out),
                         .sum_stride = statistic_strides(t.row_sum_out)},
          .sinks = {.logits = data_of<const float>(t.sinks),
                    .stride = t.sinks ? t.sinks->stride[0] : 0},
          .dtype = t.o.dtype,
          .out_dtype = t.out.dtype,
          .parts = static_cast<int>(problem.parts),
          .tokens = static_cast<int>(problem.tokens),
          .heads = static_cast<int>(problem.heads),
          .head_dim = static_cast<int>(problem.head_dim),
          .o_stride = row_strides(t.o),
          .m_stride = statistic_strides(t.lse ? t.lse : t.row_max),
          .l_stride = statistic_strides(t.row_sum),
          .out_stride = row_strides(t.out),
          .lse_stride = statistic_strides(t.lse_out)};
}

void merge_states(const MergeStatesTensors& tensors, const MergeStatesOptions& options,
                  Stream stream) {
  prepare<MergeStates>(tensors, options).launch({}, stream);
}

}  // namespace tilewright
