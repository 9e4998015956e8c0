// How long a call keeps the host: its checks, the selection and the plan of a kernel and, on a GPU,
// its tensor maps and params. Prints a line for each call, in microseconds. The exit status is 1 if
// a call allocates memory.
//
// Nothing is launched: the linker puts the function below in the place of the CUDA runtime's. So
// the tensors are addresses without memory.
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <new>
#include <string>

#include "tilewright/attention.hpp"
#include "tilewright/attention_with_kvcache.hpp"
#include "tilewright/dsv4_attention.hpp"
#include "tilewright/gemm_nvfp4.hpp"
#include "tilewright/nvfp4.hpp"
#include "tilewright/registry.hpp"

extern "C" int __wrap_cudaLaunchKernelExC(const void*, const void*, void**) { return 0; }

static long allocations = 0;

void* operator new(std::size_t bytes) {
  ++allocations;
  if (void* const memory = std::malloc(bytes)) {
    return memory;
  }
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace tilewright {
namespace {

bool has_allocated = false;

// Each is this far from the one before, which is more than a tensor here takes.
constexpr std::uintptr_t kStep_bytes = std::uintptr_t{1} << 36;

class Tensors {
 public:
  explicit Tensors(Device device) : device_(device) {}

  template <typename... Sizes>
  TensorView operator()(DType dtype, Sizes... sizes) {
    return contiguous(reinterpret_cast<std::byte*>(++count_ * kStep_bytes), dtype,
                      std::array{static_cast<std::int64_t>(sizes)...}, device_);
  }

 private:
  Device device_;
  std::uintptr_t count_ = 0;
};

// The shortest mean of several rounds.
template <typename Function>
void print_time(const char* what, const Function& function) {
  using Clock = std::chrono::steady_clock;
  constexpr int kRounds = 50;
  constexpr int kCalls = 1000;
  function();  // sets up what is set up once
  const long allocations_before = allocations;
  double best_us = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const Clock::time_point start = Clock::now();
    for (int i = 0; i < kCalls; ++i) {
      function();
    }
    const std::chrono::duration<double, std::micro> passed = Clock::now() - start;
    best_us = std::min(best_us, passed.count() / kCalls);
  }
  const long allocated = allocations - allocations_before;
  has_allocated = has_allocated || allocated > 0;
  std::printf("%9.3f us  %s%s\n", best_us, what, allocated > 0 ? ", which ALLOCATES MEMORY" : "");
}

// The times of a workspace query and, on a GPU, of the call itself.
template <typename Query, typename Call>
void print_times(const char* what, Device device, const Query& workspace_bytes, const Call& call) {
  std::printf("%s\n", what);
  print_time("workspace query: checks, selection, plan", workspace_bytes);
  if (device.kind == DeviceKind::cuda) {
    const Workspace workspace{reinterpret_cast<void*>(kStep_bytes / 2), workspace_bytes()};
    print_time("call: the same, tensor maps, params", [&] { call(workspace); });
  }
}

void time_attention(const char* what, const AttentionTensors& t, const AttentionOptions& options) {
  print_times(
      what, t.q.device, [&] { return attention_workspace_bytes(t, options); },
      [&](Workspace workspace) { attention(t, options, workspace); });
}

void time_kvcache(const char* what, const AttentionWithKvCacheTensors& t,
                  const AttentionWithKvCacheOptions& options) {
  print_times(
      what, t.q.device, [&] { return attention_with_kvcache_workspace_bytes(t, options); },
      [&](Workspace workspace) { attention_with_kvcache(t, options, workspace); });
}

void time_dsv4(const char* what, const Dsv4AttentionTensors& t,
               const Dsv4AttentionOptions& options) {
  print_times(
      what, t.q.device, [&] { return dsv4_attention_workspace_bytes(t, options); },
      [&](Workspace workspace) { dsv4_attention(t, options, workspace); });
}

void time_gemm(const char* what, const GemmNvfp4Tensors& t, const GemmNvfp4Options& options) {
  print_times(
      what, t.a.device, [&] { return gemm_nvfp4_workspace_bytes(t, options); },
      [&](Workspace workspace) { gemm_nvfp4(t, options, workspace); });
}

void time_quantize(const char* what, const QuantizeNvfp4Tensors& t,
                   const QuantizeNvfp4Options& options) {
  print_times(
      what, t.x.device, [&] { return quantize_nvfp4_workspace_bytes(t, options); },
      [&](Workspace workspace) { quantize_nvfp4(t, options, workspace); });
}

void time_attentions(Tensors& tensor) {
  const auto rows = [&](auto... sizes) { return tensor(DType::bf16, sizes..., 16, 128); };
  time_attention("attention, causal: batch 4, length 4096, 16 heads, D 128",
                 {.q = rows(4, 4096), .k = rows(4, 4096), .v = rows(4, 4096), .o = rows(4, 4096)},
                 {.causal = true});
  time_attention("attention, one query to 65536 keys",
                 {.q = rows(1, 1), .k = rows(1, 65536), .v = rows(1, 65536), .o = rows(1, 1)}, {});
  const TensorView lengths = tensor(DType::int32, 9);
  time_attention("attention, packed, with LSE and sinks",
                 {.q = rows(16384),
                  .k = rows(16384),
                  .v = rows(16384),
                  .o = rows(16384),
                  .lse = tensor(DType::fp32, 16, 16384),
                  .sinks = tensor(DType::fp32, 16),
                  .cu_seqlens_q = lengths,
                  .cu_seqlens_k = lengths},
                 {.causal = true});
}

// One new token of each of 64 sequences, in pages.
void time_decode(Tensors& tensor) {
  constexpr std::int64_t kBatch = 64;
  const TensorView lengths = tensor(DType::int32, kBatch);
  time_kvcache("attention_with_kvcache, decode: batch 64, up to 8192 keys in pages of 64",
               {.q = tensor(DType::bf16, kBatch, 1, 32, 128),
                .k_cache = tensor(DType::bf16, kBatch * 128, 64, 8, 128),
                .v_cache = tensor(DType::bf16, kBatch * 128, 64, 8, 128),
                .o = tensor(DType::bf16, kBatch, 1, 32, 128),
                .cache_seqlens = lengths,
                .block_table = tensor(DType::int32, kBatch, 128)},
               {.causal = true});
  const TensorView ends = tensor(DType::int32, kBatch, 1);
  time_dsv4("dsv4_attention: batch 64, 64 heads, a window of 128 keys and a list of 512",
            {.q = tensor(DType::bf16, kBatch, 1, 64, 512),
             .o = tensor(DType::bf16, kBatch, 1, 64, 512),
             .window = Dsv4Scope{.rows = tensor(DType::bf16, kBatch, 128, 512),
                                 .range_end = ends,
                                 .range_begin = ends,
                                 .ring = 128},
             .compressed = Dsv4Scope{.rows = tensor(DType::bf16, kBatch * 64, 64, 512),
                                     .indices = tensor(DType::int32, kBatch, 1, 512),
                                     .list_lengths = lengths},
             .sinks = tensor(DType::fp32, 64)},
            {});
}

void time_nvfp4(Tensors& tensor) {
  constexpr std::int64_t kN = 4096;
  constexpr std::int64_t kK = 14336;
  const auto [row_tiles, row_bytes] = packed_nvfp4_weight_shape(kN, kK);
  const TensorView weight = tensor(DType::u8, row_tiles, row_bytes);
  const TensorView scale = tensor(DType::fp32, 1);
  for (const std::int64_t m : {1, 64, 4096}) {
    time_gemm(("gemm_nvfp4, packed weight: " + std::to_string(m) + " tokens").c_str(),
              {.a = tensor(DType::bf16, m, kK),
               .b = weight,
               .c = tensor(DType::bf16, m, kN),
               .global_scale_b = scale},
              {.global_scale_b_kind = GlobalScale::encode});
  }
  time_quantize("quantize_nvfp4",
                {.x = tensor(DType::bf16, 4096, kK),
                 .codes = tensor(DType::e2m1x2, 4096, kK / 2),
                 .scales = tensor(DType::e4m3, 4096, kK / 16),
                 .computed_global_scale = scale},
                {.global_scale_kind = GlobalScale::encode});
}

void time_all(Device device) {
  Tensors tensor(device);
  time_attentions(tensor);
  time_decode(tensor);
  time_nvfp4(tensor);
}

}  // namespace
}  // namespace tilewright

int main() {
  using namespace tilewright;
  const bool has_gpu = cuda_device_count() > 0;
  const Device device{has_gpu ? DeviceKind::cuda : DeviceKind::cpu, 0};
  std::printf("on %s\n", device_info(device).name.c_str());
  time_all(device);
  return has_allocated ? 1 : 0;
}
