#include "cuda/attention/dsv4_decode/launch.hpp"

namespace tilewright::cuda {

void launch_dsv4_decode(const Dsv4AttentionParams& p, const Plan& planned, Stream stream) {
  const auto details = planned.details<Dsv4Details>();
  const auto launch = details.plan.cluster == 1 ? launch_dsv4_block : launch_dsv4_cluster;
  launch(p, details, stream);
}

}  // namespace tilewright::cuda
