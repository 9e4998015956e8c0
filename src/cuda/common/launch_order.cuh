// For kernels that may start before the launch ahead of them has ended (programmatic dependent
// launch; LaunchOptions::may_start_early). Every block of such a kernel waits before it ends, even
// if it reads nothing: otherwise the launches after it might run before the one ahead.
//
// A launch may run beside the one ahead if neither reads what the other writes. The one ahead waits
// for those before it, and only then lets the next one start, which waits when it has done its
// work.
#pragma once

namespace tilewright::cuda {

// Waits until the launches ahead have ended. Every thread that reads what they wrote, or writes
// what they read, must call it. It returns at once if they have ended already.
__device__ inline void wait_for_launch_before() {
  asm volatile("griddepcontrol.wait;" ::: "memory");
}

// Once all blocks have called this or ended, the next launch, if it may, starts on SMs with room
// for it. Until its own wait, that launch must not rely on anything that this one does.
__device__ inline void let_next_launch_start() {
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

}  // namespace tilewright::cuda
