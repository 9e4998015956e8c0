// tilewright kv-rows: random vectors into DeepSeek-V4's KV rows, checked byte by byte and timed
// beside a copy.
#include "reference/kv_rows.hpp"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <numeric>
#include <random>

#include "cli/commands.hpp"
#include "cli/device_memory.hpp"
#include "cli/kv_row_cache.hpp"
#include "cli/options.hpp"
#include "cli/runner.hpp"
#include "tilewright/kv_rows.hpp"

namespace tilewright::cli {
namespace {

using reference::HostTensor;

struct RowsProblem {
  DType dtype = DType::bf16;  // of the vectors
  KvRowFormat format = KvRowFormat::e4m3_bf16;
  std::int64_t rows = 65536;
  std::int64_t page_size = 64;
  std::uint64_t seed = 0;

  std::int64_t pages() const { return (rows + page_size - 1) / page_size; }
};

// Every row has a page that is anywhere in the cache, and its own place there.
HostTensor make_slots(const RowsProblem& p) {
  std::vector<std::int64_t> pages(static_cast<std::size_t>(p.pages()));
  std::iota(pages.begin(), pages.end(), std::int64_t{0});
  std::ranges::shuffle(pages, std::mt19937_64(p.seed));
  HostTensor slots(DType::int64, {p.rows});
  for (std::int64_t row = 0; row < p.rows; ++row) {
    const std::int64_t page = pages[static_cast<std::size_t>(row / p.page_size)];
    reference::store(slots.view(), row,
                     static_cast<double>(page * p.page_size + row % p.page_size));
  }
  return slots;
}

class Tensors final : public CaseTensors {
 public:
  Tensors(const RowsProblem& p, HostTensor& x, Machine& machine)
      : x_(x),
        slots_(make_slots(p)),
        memory_(machine),
        rows_(memory_.output(make_kv_row_cache(p.format, p.pages(), p.page_size))),
        tensors_{
            .x = memory_.upload(x), .rows = rows_.view, .slot_mapping = memory_.upload(slots_)} {}

  Launch launch(const KernelInfo& kernel) override {
    return [this, &kernel](Stream stream) {
      quantize_kv_rows(tensors_, {.kernel = kernel.name}, stream);
    };
  }

  // Every byte must be the float64 model's, gaps included.
  CheckResult check(const KernelInfo& kernel) override {
    memory_.run(launch(kernel), {&rows_});
    HostTensor expected = rows_.host;
    std::memset(expected.data(), DeviceMemory::kPoison, expected.bytes());
    reference::quantize_kv_rows(
        {.x = x_.view(), .rows = expected.view(), .slot_mapping = slots_.view()});
    CheckResult result{.summary = "every byte is the float64 model's"};
    if (!same_bytes(rows_.host, expected)) {
      result.failure = "bytes of rows differ";
    }
    return result;
  }

 private:
  HostTensor& x_;
  HostTensor slots_;
  DeviceMemory memory_;
  Output rows_;
  QuantizeKvRowsTensors tensors_;
};

class KvRowsCase final : public CaseOf<QuantizeKvRows> {
 public:
  explicit KvRowsCase(const RowsProblem& problem) : problem_(problem) {}

  std::string_view operation() const override { return QuantizeKvRows::kName; }

  Json to_json() const override {
    return {{"rows", problem_.rows},
            {"dtype", name(problem_.dtype)},
            {"format", name(problem_.format)},
            {"page_size", problem_.page_size}};
  }

  std::string label() const override {
    return fmt::format("{} {} rows to {} in pages of {}", name(problem_.dtype), problem_.rows,
                       name(problem_.format), problem_.page_size);
  }

  std::string arguments() const override {
    return fmt::format("kv-rows --dtype {} --format {} --rows {} --page-size {} --seed {}",
                       name(problem_.dtype), name(problem_.format), problem_.rows,
                       problem_.page_size, problem_.seed);
  }

  double flops() const override { return 0; }

  double bytes() const override {
    const std::size_t row_bytes = kKvRowDims * size_bytes(problem_.dtype) + sizeof(std::int64_t) +
                                  static_cast<std::size_t>(kv_row_bytes(problem_.format));
    return static_cast<double>(problem_.rows) * static_cast<double>(row_bytes);
  }

  std::optional<Reason> why_not(const KernelInfo& kernel, Device device) const override {
    return can_run(*find_kernel<QuantizeKvRows>(kernel.name),
                   {.dtype = problem_.dtype, .format = problem_.format, .rows = problem_.rows},
                   device_info(device));
  }

  std::unique_ptr<CaseTensors> make_tensors(Machine& machine) override {
    if (!x_) {
      check_host_memory(2.0 * bytes());
      x_.emplace(problem_.dtype, std::vector{problem_.rows, std::int64_t{kKvRowDims}});
      reference::fill_normal(x_->view(), problem_.seed);
    }
    return std::make_unique<Tensors>(problem_, *x_, machine);
  }

  bool compares_with_copy() const override { return true; }

 private:
  RowsProblem problem_;
  std::optional<HostTensor> x_;
};

struct RowsArguments {
  RunOptions run;
  RowsProblem problem;
};

int run(RowsArguments a) {
  a.problem.dtype = a.run.dtype;
  a.problem.seed = a.run.seed;
  return run_case(a.run, std::make_unique<KvRowsCase>(a.problem));
}

}  // namespace

Command add_kv_rows_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "kv-rows", "Quantise random vectors into DeepSeek-V4's KV rows, check and time it");
  const auto arguments = std::make_shared<RowsArguments>();
  add_run_options(*command, "--kernel", "Of the vectors: bf16 or fp32", arguments->run);
  RowsProblem& problem = arguments->problem;
  // A terminal's size is often in the environment as ROWS.
  add_size(*command, "--rows", problem.rows, "Rows (default: 65536)");
  add_named(*command, "--format", problem.format, kKvRowFormats, "bf16, e4m3_bf16, e4m3 or e2m1")
      ->envname("FORMAT");
  add_size(*command, "--page-size", problem.page_size, "Rows of a page (default: 64)")
      ->envname("PAGE_SIZE");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
