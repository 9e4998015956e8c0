// merge_states() against its contract.
#include <algorithm>
#include <cmath>
#include <limits>

#include "fuzz/attention_parts.hpp"
#include "fuzz/call.hpp"
#include "fuzz/matrices.hpp"
#include "fuzz/rows.hpp"
#include "reference/merge_states.hpp"

namespace tilewright::fuzz {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

class MergeCall final : public Call {
 public:
  MergeCall(Choices& choices, Arena& arena) : Call(choices, arena) {
    const std::int64_t parts = choices_.between(1, 4);
    const std::int64_t tokens = choices_.between(1, 4);
    const std::int64_t heads = choices_.between(1, 3);
    const std::int64_t dim = choices_.one_of(kHeadDims);
    const bool has_sums = choices_.one_in(3);
    const bool is_unnormalized = has_sums && choices_.coin();
    const DType dtype = has_sums ? DType::fp32 : choices_.one_of(kFloats);
    const DType out_dtype =
        dtype == DType::fp32 && !is_unnormalized ? choices_.one_of(kFloats) : dtype;
    add("o", dtype, {parts, tokens, heads, dim}, Strides::rows, false);
    add("out", out_dtype, {tokens, heads, dim}, Strides::rows, true);
    const auto add_of_parts = [&](std::string_view name, bool is_given) {
      add_optional(name, DType::fp32, {parts, heads, tokens}, Strides::any, false, is_given);
    };
    add_of_parts("lse", !has_sums);
    add_of_parts("row_max", has_sums);
    add_of_parts("row_sum", has_sums);
    const auto add_result = [&](std::string_view name, bool is_given) {
      add_optional(name, DType::fp32, {heads, tokens}, Strides::any, true, is_given);
    };
    add_result("lse_out", choices_.coin());
    add_result("row_max_out", is_unnormalized);
    add_result("row_sum_out", is_unnormalized);
    add_optional("sinks", DType::fp32, {heads}, Strides::any, false, choices_.one_in(3));
    options_.kernel = choices_.coin() ? "cpu" : "auto";
  }

  void judge(Contract& c) const override {
    judge_forms(c);
    const auto [parts, tokens, heads, dim] = open_sizes<4>(tensor("o"));
    for (const auto& [name, has_shape] :
         {std::pair{"o", c.has_shape((*this)["o"], {kAny, kAny, kAny, kAny})},
          {"out", c.has_shape((*this)["out"], {tokens, heads, dim})}}) {
      if (has_shape) {
        c.has_strides((*this)[name], Strides::rows);
      }
    }
    for (const char* const name : {"lse", "row_max", "row_sum"}) {
      judge_statistic(c, name, {parts, heads, tokens});
    }
    for (const char* const name : {"lse_out", "row_max_out", "row_sum_out"}) {
      judge_statistic(c, name, {heads, tokens});
    }
    judge_statistic(c, "sinks", {heads});
    if (options_.kernel != "auto" && options_.kernel != "cpu") {
      c.refuse("kernel");
      c.refuse("o");  // it is on no device of that kernel's
    }
    c.on_one_device(arguments());
    c.outputs_are_apart(arguments());
  }

  void fill() override {
    const std::uint64_t seed = choices_.below(1000);
    std::uint64_t step = 0;
    for (const char* const name : {"o", "lse", "row_max", "sinks"}) {
      fill_normal(input(name), seed + ++step);
      if (name != std::string_view("o")) {
        put_somewhere(name, {-kInfinity, kInfinity, kNaN});
      }
    }
    fill_positive(input("row_sum"));
    put_somewhere("o", {kNaN});
  }

  void make(Workspace) const override { merge_states(tensors(), options_); }

  void check_results() const override {
    const MergeStatesTensors t = tensors();
    const reference::MergedStates exact = reference::merge_states(t);
    std::vector<double> bounds;
    for (const double value : exact.out) {
      bounds.push_back(1e-4 + 1e-5 * std::abs(value) + rounding_of(t.out.dtype, value));
    }
    check_near(t.out, exact.out, bounds, "out");
    const auto check_statistic = [](const std::optional<TensorView>& statistic,
                                    const std::vector<double>& expected, const char* name) {
      if (statistic) {
        check_near(*statistic, expected, statistic_bounds(expected), name);
      }
    };
    check_statistic(t.lse_out, exact.lse, "lse_out");
    check_statistic(t.row_max_out, exact.row_max, "row_max_out");
    check_statistic(t.row_sum_out, exact.row_sum, "row_sum_out");
  }

 private:
  void judge_forms(Contract& c) const {
    const bool has_sums = is_given("row_max") || is_given("row_sum");
    if (is_given("lse") == has_sums) {
      c.refuse("lse");
    }
    if (is_given("row_max") != is_given("row_sum")) {
      c.refuse("row_max");
      c.refuse("row_sum");
    }
    const bool is_unnormalized = is_given("row_max_out") || is_given("row_sum_out");
    if (is_given("row_max_out") != is_given("row_sum_out") || (is_unnormalized && !has_sums)) {
      c.refuse("row_max_out");
      c.refuse("row_sum_out");
    }
    const DType dtype = tensor("o").dtype;
    if (has_sums) {
      c.has_dtype((*this)["o"], {DType::fp32});
    } else {
      c.has_dtype((*this)["o"], {DType::fp32, DType::fp16, DType::bf16});
    }
    if (is_unnormalized || dtype != DType::fp32) {
      c.has_dtype((*this)["out"], {is_unnormalized ? DType::fp32 : dtype});
    } else {
      c.has_dtype((*this)["out"], {DType::fp32, DType::fp16, DType::bf16});
    }
  }

  void judge_statistic(Contract& c, std::string_view name,
                       const std::vector<std::int64_t>& shape) const {
    if (is_given(name)) {
      c.has_shape((*this)[name], shape);
      c.has_dtype((*this)[name], {DType::fp32});
    }
  }

  void spoil_options() override {
    constexpr std::array kNames = {"", "flash", "hopper", "cpu "};
    options_.kernel = choices_.one_of(kNames);
  }

  MergeStatesTensors tensors() const {
    return {.o = tensor("o"),
            .out = tensor("out"),
            .lse = input("lse"),
            .row_max = input("row_max"),
            .row_sum = input("row_sum"),
            .lse_out = output("lse_out"),
            .row_max_out = output("row_max_out"),
            .row_sum_out = output("row_sum_out"),
            .sinks = input("sinks")};
  }

  MergeStatesOptions options_;
};

}  // namespace

std::unique_ptr<Call> make_merge(Choices& choices, Arena& arena) {
  return std::make_unique<MergeCall>(choices, arena);
}

}  // namespace tilewright::fuzz
