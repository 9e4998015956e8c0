// tilewright info: the machine, the versions, and how fast the hardware is.
#include <fmt/core.h>

#include <exception>

#include "cli/commands.hpp"
#include "cli/cublaslt.hpp"
#include "cli/timer.hpp"
#include "tilewright/registry.hpp"
#include "tilewright/version.hpp"

namespace tilewright::cli {
namespace {

constexpr double kGib_bytes = 1024.0 * 1024.0 * 1024.0;

void print_row(std::string_view what, const std::string& value) {
  fmt::print("{:<22} {}\n", what, value);
  std::fflush(stdout);
}

// The bytes that a copy far larger than the L2 cache reads and writes, over its time.
double copy_gbps(Machine& machine) {
  constexpr std::size_t kCopy_bytes = std::size_t{1} << 30;
  return 2.0 * kCopy_bytes / measure_copy(machine, kCopy_bytes, {}).median_us * 1e-3;
}

std::string version_text(std::size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

void print_gemm_ceiling(Machine& machine, const std::string& cublaslt_path) {
  try {
    const GemmCeiling ceiling = measure_gemm_ceiling(machine, cublaslt_candidates(cublaslt_path));
    print_row("  BF16 GEMM 8192^3",
              fmt::format("{:.0f} TFLOP/s, by cuBLASLt {} ({})", ceiling.tflops,
                          version_text(ceiling.version), ceiling.library));
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    print_row("  BF16 GEMM 8192^3", fmt::format("not measured: no cuBLASLt: {}", error.what()));
  }
}

void print_gpu(int index, const std::string& cublaslt_path) {
  const DeviceInfo& info = device_info({DeviceKind::cuda, index});
  const std::unique_ptr<Machine> machine = open_cuda_machine(index);
  print_row(name(info.device),
            fmt::format("{}, compute capability {}.{}, {} SMs, {:.1f} GiB, {:.0f} MiB of L2",
                        info.name, info.compute_capability / 10, info.compute_capability % 10,
                        info.multiprocessors, static_cast<double>(info.memory_bytes) / kGib_bytes,
                        static_cast<double>(info.l2_bytes) / (1024.0 * 1024.0)));
  print_row("  driver", machine->driver().value_or("unknown: no libnvidia-ml.so.1"));
  print_row("  CUDA runtime", machine->cuda().value_or("none"));
  print_row("  copy, read + written", fmt::format("{:.0f} GB/s", copy_gbps(*machine)));
  print_gemm_ceiling(*machine, cublaslt_path);
}

int info(const std::string& cublaslt_path) {
  const DeviceInfo& cpu = device_info({});
  print_row("tilewright", fmt::format("{} ({}), {}", kVersion, kCommit,
                                      has_cuda() ? "with CUDA" : "without CUDA"));
  print_row("cpu", fmt::format("{}, {} threads, {:.1f} GiB", cpu.name, cpu.multiprocessors,
                               static_cast<double>(cpu.memory_bytes) / kGib_bytes));
  const int count = cuda_device_count();
  for (int index = 0; index < count; ++index) {
    print_gpu(index, cublaslt_path);
  }
  if (count == 0) {
    print_row("gpu", has_cuda() ? "none: the CUDA runtime finds no device"
                                : fmt::format("none: {}", cpu_only_notice()));
    print_row("copy, BF16 GEMM", "not measured: they need a GPU");
  }
  return kPass;
}

}  // namespace

Command add_info_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "info", "The machine and the versions; on a GPU, measured bandwidth and GEMM throughput");
  const auto path = std::make_shared<std::string>();
  command
      ->add_option(
          "--cublaslt", *path,
          "libcublasLt.so to load; by default searched for by the dynamic linker and beside "
          "Python's packages")
      ->type_name("FILE")
      ->envname("CUBLASLT");
  return {command, [path] { return info(*path); }};
}

}  // namespace tilewright::cli
