// For kernels that may start beside the launch before them on the stream (programmatic dependent
// launch; LaunchOptions::may_start_early). Every block of such a kernel waits before it ends, even
// where it reads nothing: or else what comes after it would not come after the launch before it.
#pragma once

namespace tilewright::cuda {

// To be called by every thread that reads what the launches before wrote, or writes what they read:
// waits until they are done. Where they are already, it returns at once.
__device__ inline void wait_for_launch_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Once all blocks have called it or ended, the next launch, if it may, takes the room that they
// leave. Until that launch's own wait, nothing of this one may be believed to be done.
__device__ inline void let_next_launch_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace tilewright::cuda
