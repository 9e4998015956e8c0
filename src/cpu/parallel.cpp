#include "cpu/parallel.hpp"

#include <omp.h>
#include <pthread.h>

#include <atomic>

namespace tilewright::cpu {
namespace {

std::atomic<bool> is_forked = false;

[[maybe_unused]] const int handler_is_registered =
    pthread_atfork(nullptr, nullptr, [] { is_forked = true; });

}  // namespace

int thread_count() { return is_forked ? 1 : omp_get_max_threads(); }

}  // namespace tilewright::cpu
