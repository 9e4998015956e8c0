#include "cli/cublaslt.hpp"

#include <fmt/core.h>
#include <glob.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <stdexcept>

#include "cli/dynamic_library.hpp"
#include "cli/timer.hpp"
#include "reference/host_tensor.hpp"

namespace tilewright::cli {
namespace {

constexpr int kSize = 8192;  // rows and columns of all three matrices
constexpr std::size_t kWorkspace_bytes = std::size_t{64} << 20;

void check(int status, const char* what) {
  if (status != 0) {
    throw std::runtime_error(fmt::format("{} failed with status {}", what, status));
  }
}

// The part of cublasLt.h that is used here; handles and descriptors are opaque pointers.
struct CublasLt {
  static constexpr int kBf16 = 14;         // CUDA_R_16BF
  static constexpr int kFp32 = 0;          // CUDA_R_32F
  static constexpr int kComputeFp32 = 68;  // CUBLAS_COMPUTE_32F
  static constexpr int kTransposeA = 3;    // CUBLASLT_MATMUL_DESC_TRANSA
  static constexpr int kMaxWorkspace = 1;  // CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES

  struct Algorithm {  // cublasLtMatmulHeuristicResult_t
    std::uint64_t algo[8];
    std::size_t workspace_bytes;
    int status;
    float waves;
    int reserved[4];
  };

  explicit CublasLt(const std::string& path) : file(path) {
    file.load(get_version, "cublasLtGetVersion");
    file.load(create, "cublasLtCreate");
    file.load(create_gemm, "cublasLtMatmulDescCreate");
    file.load(set_gemm, "cublasLtMatmulDescSetAttribute");
    file.load(create_layout, "cublasLtMatrixLayoutCreate");
    file.load(create_preference, "cublasLtMatmulPreferenceCreate");
    file.load(set_preference, "cublasLtMatmulPreferenceSetAttribute");
    file.load(find_algorithms, "cublasLtMatmulAlgoGetHeuristic");
    file.load(multiply, "cublasLtMatmul");
  }

  DynamicLibrary file;
  std::size_t (*get_version)() = nullptr;
  int (*create)(void** handle) = nullptr;
  int (*create_gemm)(void** gemm, int compute_type, int scale_type) = nullptr;
  int (*set_gemm)(void* gemm, int attribute, const void* value, std::size_t) = nullptr;
  int (*create_layout)(void** layout, int type, std::uint64_t rows, std::uint64_t columns,
                       std::int64_t leading_dimension) = nullptr;
  int (*create_preference)(void** preference) = nullptr;
  int (*set_preference)(void* preference, int attribute, const void* value, std::size_t) = nullptr;
  int (*find_algorithms)(void* handle, void* gemm, void* a, void* b, void* c, void* d,
                         void* preference, int wanted, Algorithm* found, int* count) = nullptr;
  int (*multiply)(void* handle, void* gemm, const void* alpha, const void* a, void* a_layout,
                  const void* b, void* b_layout, const void* beta, const void* c, void* c_layout,
                  void* d, void* d_layout, const void* algorithm, void* workspace,
                  std::size_t workspace_bytes, Stream stream) = nullptr;
};

CublasLt load_first(const std::vector<std::string>& candidates, std::string& loaded) {
  std::string reasons;
  for (const std::string& path : candidates) {
    try {
      loaded = path;
      return CublasLt(path);
    } catch (const std::runtime_error& error) {
      reasons += fmt::format("{}{}", reasons.empty() ? "" : "; ", error.what());
    }
  }
  throw std::runtime_error(reasons);
}

// The GEMM D = A^T B of column-major matrices of one size, BLAS's fastest form. Its descriptors
// live until the program ends: it runs once.
struct Gemm {
  explicit Gemm(const CublasLt& blas) : lt(blas) {
    check(lt.create(&handle), "cublasLtCreate");
    check(lt.create_gemm(&gemm, CublasLt::kComputeFp32, CublasLt::kFp32),
          "cublasLtMatmulDescCreate");
    const std::int32_t transpose = 1;  // CUBLAS_OP_T
    check(lt.set_gemm(gemm, CublasLt::kTransposeA, &transpose, sizeof(transpose)),
          "cublasLtMatmulDescSetAttribute");
    check(lt.create_layout(&layout, CublasLt::kBf16, kSize, kSize, kSize),
          "cublasLtMatrixLayoutCreate");
  }

  std::vector<CublasLt::Algorithm> algorithms() const {
    constexpr int kWanted = 8;
    void* preference = nullptr;
    check(lt.create_preference(&preference), "cublasLtMatmulPreferenceCreate");
    check(lt.set_preference(preference, CublasLt::kMaxWorkspace, &kWorkspace_bytes,
                            sizeof(kWorkspace_bytes)),
          "cublasLtMatmulPreferenceSetAttribute");
    std::vector<CublasLt::Algorithm> found(kWanted);
    int count = 0;
    check(lt.find_algorithms(handle, gemm, layout, layout, layout, layout, preference, kWanted,
                             found.data(), &count),
          "cublasLtMatmulAlgoGetHeuristic");
    found.resize(static_cast<std::size_t>(count));
    return found;
  }

  void multiply(const CublasLt::Algorithm& algorithm, const void* a, const void* b, void* d,
                void* workspace, Stream stream) const {
    const float one = 1;
    const float zero = 0;
    check(lt.multiply(handle, gemm, &one, a, layout, b, layout, &zero, d, layout, d, layout,
                      &algorithm.algo, workspace, kWorkspace_bytes, stream),
          "cublasLtMatmul");
  }

  const CublasLt& lt;
  void* handle = nullptr;
  void* gemm = nullptr;
  void* layout = nullptr;
};

Memory random_matrix(Machine& machine, std::uint64_t seed) {
  reference::HostTensor host(DType::bf16, {kSize, kSize});
  reference::fill_normal(host.view(), seed);
  Memory matrix = machine.allocate(host.bytes());
  machine.upload(matrix.get(), host.data(), host.bytes());
  return matrix;
}

// The files that match a pattern, in alphabetical order.
std::vector<std::string> glob_files(const std::string& pattern) {
  glob_t matches{};
  glob(pattern.c_str(), 0, nullptr, &matches);
  std::vector<std::string> files(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  return files;
}

}  // namespace

std::vector<std::string> cublaslt_candidates(const std::string& path) {
  if (!path.empty()) {
    return {path};
  }
  std::vector<std::string> candidates = {"libcublasLt.so.13", "libcublasLt.so.12"};
  std::vector<std::string> prefixes = {"/usr/local", "/usr"};
  if (const char* const environment = std::getenv("VIRTUAL_ENV")) {
    prefixes.insert(prefixes.begin(), environment);
  }
  for (const std::string& prefix : prefixes) {  // the folder is cu13, or cublas for CUDA 12
    for (const char* const packages : {"site-packages", "dist-packages"}) {
      const auto files = glob_files(
          fmt::format("{}/lib/python3*/{}/nvidia/cu*/lib/libcublasLt.so.1[23]", prefix, packages));
      candidates.insert(candidates.end(), files.begin(), files.end());
    }
  }
  return candidates;
}

GemmCeiling measure_gemm_ceiling(Machine& machine, const std::vector<std::string>& candidates) {
  GemmCeiling ceiling;
  const CublasLt lt = load_first(candidates, ceiling.library);
  ceiling.version = lt.get_version();
  const Gemm gemm(lt);
  const Memory a = random_matrix(machine, 1);
  const Memory b = random_matrix(machine, 2);
  const Memory d = machine.allocate(sizeof(std::uint16_t) * kSize * kSize);
  const Memory workspace = machine.allocate(kWorkspace_bytes);

  std::optional<double> best_us;
  for (const CublasLt::Algorithm& algorithm : gemm.algorithms()) {
    const auto launch = [&](Stream stream) {
      gemm.multiply(algorithm, a.get(), b.get(), d.get(), workspace.get(), stream);
    };
    const double median_us = measure(machine, launch, {}).median_us;
    best_us = std::min(best_us.value_or(median_us), median_us);
  }
  if (!best_us) {
    throw std::runtime_error("its heuristic offers no algorithm for this GEMM");
  }
  ceiling.tflops = 2.0 * kSize * kSize * kSize / *best_us * 1e-6;
  return ceiling;
}

}  // namespace tilewright::cli
