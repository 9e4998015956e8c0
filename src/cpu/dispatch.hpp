// Work that is compiled for each set of instructions that a CPU may have.
#pragma once

namespace tilewright::cpu {

// Work is a type with an always-inlined function, template <int kRows> static void run(Args...).
// kRows is how many rows of a product fit into registers, as of multiply() in vector.hpp.
template <class Work, typename... Args>
void run_portable(Args... args) {
  Work::template run<6>(args...);
}

#if defined(__x86_64__)
template <class Work, typename... Args>
__attribute__((target("avx2,fma"))) void run_avx2(Args... args) {
  Work::template run<6>(args...);
}

template <class Work, typename... Args>
__attribute__((target("avx512f,avx512dq,avx512vl,fma"))) void run_avx512(Args... args) {
  Work::template run<12>(args...);
}
#endif

// The function that does the work with the instructions of this CPU.
template <class Work, typename... Args>
auto best_for_this_cpu() -> void (*)(Args...) {
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return run_avx512<Work, Args...>;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    return run_avx2<Work, Args...>;
  }
#endif
  return run_portable<Work, Args...>;
}

}  // namespace tilewright::cpu
