// tilewright probe-accumulator: how many bits the tensor cores keep while they add.
#include <fmt/core.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "cli/commands.hpp"
#include "cli/options.hpp"
#include "cli/results_file.hpp"
#include "cli/wgmma_chain.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

constexpr std::string_view kCommand = "probe-accumulator";
constexpr auto kRow = "{:<5} {:>4} {:>4}  {:>5} {:>9} {:>5} {:>9}  {:<18} {}\n";

const Names<std::vector<DType>> kElements = {
    {"both", {DType::e4m3, DType::bf16}}, {"e4m3", {DType::e4m3}}, {"bf16", {DType::bf16}}};

struct ProbeArguments {
  std::string device = "cuda";
  std::vector<DType> dtypes = kElements.front().second;
  std::vector<int> columns{kWgmmaColumns.begin(), kWgmmaColumns.end()};
  std::vector<int> instructions = {1, 2, 4, 8, kMostInstructions};
  std::string json_path;
};

// Throws where the device is no GPU that has the instructions.
Device checked_device(const std::string& text) {
  const Device device = parse_device(text).value_or(Device{DeviceKind::cuda, 0});
  if (device.kind != DeviceKind::cuda) {
    throw UsageError("--device", fmt::format("is {}, must be cuda or cuda:N", text));
  }
  const std::string needs = "needs a Hopper GPU (compute capability 9.0), but ";
  if (cuda_device_count() == 0) {
    const std::string_view notice = cpu_only_notice();
    throw Error(ErrorCode::no_device, std::string(kCommand),
                fmt::format("{}{}", needs, has_cuda() ? "CUDA finds no GPU" : notice));
  }
  const DeviceInfo& info = device_info(device);
  if (info.compute_capability != 90) {
    throw Error(ErrorCode::unsupported, std::string(kCommand),
                fmt::format("{}{} has {}.{}", needs, info.name, info.compute_capability / 10,
                            info.compute_capability % 10));
  }
  return device;
}

std::string width(int bits) { return fmt::format("{}{}", bits >= kMostBits ? ">=" : "", bits); }

std::string rounds(const AccumulatorFindings& found) {
  if (!found.rounds_each_product) {
    return "?";
  }
  return *found.rounds_each_product ? "each product" : "their sum";
}

void print_header() {
  fmt::print(kRow, "dtype", "N", "K", "bits", "beside C", "of C", "of a sum", "rounding", "of");
}

void print(const WgmmaChain& chain, const AccumulatorFindings& found) {
  const bool is_everywhere = found.bits == found.most_bits;
  fmt::print(kRow, name(chain.dtype), chain.n, chain.k(),
             width(found.bits) + (is_everywhere ? "" : "-" + width(found.most_bits)),
             width(found.bits_beside_c), width(found.bits_of_c), width(found.bits_of_sum),
             name(found.rounding), rounds(found));
  std::fflush(stdout);
}

Json result_line(const WgmmaChain& chain, const AccumulatorFindings& found,
                 const Machine& machine) {
  const auto& each = found.rounds_each_product;
  Json line = {{"operation", "probe_accumulator"},
               {"case", {{"dtype", name(chain.dtype)}, {"n", chain.n}, {"k", chain.k()}}},
               {"impl", "tilewright/wgmma_chain"},
               {"impl_version", kCommit},
               {"accumulator",
                {{"bits", found.bits},
                 {"most_bits", found.most_bits},
                 {"bits_beside_c", found.bits_beside_c},
                 {"bits_of_c", found.bits_of_c},
                 {"bits_of_sum", found.bits_of_sum},
                 {"rounding", name(found.rounding)},
                 {"rounds_each_product", each ? Json(*each) : Json()}}}};
  add_machine(line, description_of(machine));
  line["supported"] = true;
  return line;
}

int run(const ProbeArguments& a) {
  const Device device = checked_device(a.device);
  ResultsFile results(a.json_path, /*resume=*/false);
  const std::unique_ptr<Machine> machine = open_machine(device);
  print_header();
  for (const DType dtype : a.dtypes) {
    for (const int n : a.columns) {
      for (const int instructions : a.instructions) {
        const WgmmaChain chain{dtype, n, instructions};
        const AccumulatorFindings found = probe_accumulator(
            chain.products(), chain.instructions,
            [&](const std::vector<Summands>& sums) { return add_up_on(*machine, chain, sums); });
        print(chain, found);
        results.append(result_line(chain, found, *machine));
      }
    }
  }
  return kPass;
}

CLI::Option* add_list(CLI::App& command, const std::string& option, std::vector<int>& values,
                      const std::string& help) {
  return command.add_option(option, values, help)
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,...")
      ->capture_default_str();
}

}  // namespace

Command add_probe_accumulator_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      std::string(kCommand), "How many bits the tensor cores keep while they add; needs a GPU");
  const auto arguments = std::make_shared<ProbeArguments>();
  command->add_option("--device", arguments->device, "cuda or cuda:N")->capture_default_str();
  add_named(*command, "--dtype", arguments->dtypes, kElements, "Of A and B: e4m3, bf16 or both");
  add_list(*command, "--n", arguments->columns, "N of the instructions")
      ->check(number<int>(fmt::format("one of {}", fmt::join(kWgmmaColumns, ", ")), [](int n) {
        return std::ranges::find(kWgmmaColumns, n) != kWgmmaColumns.end();
      }));
  add_list(*command, "--instructions", arguments->instructions, "Of a chain, of K = 32 or 16 each")
      ->check(number<int>(fmt::format("a whole number from 1 to {}", kMostInstructions),
                          [](int count) { return count >= 1 && count <= kMostInstructions; }));
  command
      ->add_option("--json", arguments->json_path, "Write results lines to this file, replacing it")
      ->type_name("FILE");
  return {command, [arguments] { return run(*arguments); }};
}

}  // namespace tilewright::cli
