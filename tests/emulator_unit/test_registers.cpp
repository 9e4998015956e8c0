// setmaxnreg: what a block has at launch, how its warps share it out, and what is wrong with it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "emulator/machine.hpp"
#include "emulator/parser.hpp"

namespace tilewright::emulator {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr std::uint32_t kThreads = 384;  // with 168 registers each
const std::string kBounds = ".maxntid 384 .minnctapersm 1";

std::string setmaxnreg(const std::string& action, int registers) {
  return "setmaxnreg." + action + ".sync.aligned.u32 " + std::to_string(registers) + ";\n";
}

// A kernel in which threads below `first` do one thing and the others another.
std::string kernel(const std::string& directives, int first, const std::string& one,
                   const std::string& another) {
  return ".visible .entry k()\n" + directives + "\n{\n" +
         ".reg .pred %p<2>;\n.reg .b32 %r<2>;\n"
         "mov.u32 %r1, %tid.x;\nsetp.lt.u32 %p1, %r1, " +
         std::to_string(first) + ";\n@%p1 bra $one;\n" + another + "bra.uni $end;\n$one:\n" + one +
         "$end:\nbar.sync 0;\nret;\n}\n";
}

// A kernel whose first warpgroup does one thing and the others another.
std::string roles(const std::string& one, const std::string& others) {
  return kernel(kBounds, 128, one, others);
}

// What the emulator says of a launch of one block. Empty if it runs.
std::string run(const std::string& text, std::uint32_t threads = kThreads) {
  try {
    Module module(text);
    Grid grid;
    grid.kernel = &module.kernel("k");
    grid.shape.block = {threads, 1, 1};
    grid.run();
    return "";
  } catch (const EmulationError& error) {
    return error.what();
  }
}

std::uint32_t at_launch(const std::string& directives, std::uint32_t threads = kThreads,
                        int increase = 256) {
  Module module(kernel(directives, 0, "", setmaxnreg("inc", increase)));
  return registers_at_launch(module.kernel("k"), threads);
}

// ptxas gives kernels with setmaxnreg these numbers; 255 are allocated as 256.
TEST(Registers, AtLaunchAreWhatFits) {
  EXPECT_EQ(at_launch(".maxntid 128 .minnctapersm 1"), 256);
  EXPECT_EQ(at_launch(".maxntid 256"), 256);
  EXPECT_EQ(at_launch(".maxntid 256 .minnctapersm 2"), 128);
  EXPECT_EQ(at_launch(".maxntid 384"), 168);
  EXPECT_EQ(at_launch(".maxntid 32, 12, 1"), 168);
  EXPECT_EQ(at_launch(".maxntid 512"), 128);
  EXPECT_EQ(at_launch(".maxntid 1024 .minnctapersm 2"), 32);
}

TEST(Registers, AtLaunchCountWarpsInFours) {
  EXPECT_EQ(at_launch(".maxntid 160 .minnctapersm 2"), 168);
  EXPECT_EQ(at_launch(".maxntid 288"), 168);
  EXPECT_EQ(at_launch(".maxntid 288 .minnctapersm 2"), 96);
  EXPECT_EQ(at_launch(".maxntid 416 .minnctapersm 2"), 72);
  EXPECT_EQ(at_launch(".maxntid 640"), 96);
}

TEST(Registers, AtLaunchAreBoundedByThePtx) {
  EXPECT_EQ(at_launch(".maxntid 384", 128), 168);  // a smaller block than the bound
  EXPECT_EQ(at_launch("", 512), 128);              // no bound: the block's own threads
  EXPECT_EQ(at_launch(".maxntid 384 .maxnreg 100"), 104);
}

TEST(Registers, AtLaunchAreNoMoreThanTheLargestIncrease) {
  EXPECT_EQ(at_launch(".maxntid 256", 256, 232), 232);
  EXPECT_EQ(at_launch(".maxntid 384", 384, 160), 160);
  EXPECT_EQ(at_launch(".maxntid 384", 384, 176), 168);
}

TEST(Registers, AnExactShareRuns) {  // 24 + 2 * 240 = 3 * 168
  EXPECT_EQ(run(roles(setmaxnreg("dec", 24), setmaxnreg("inc", 240))), "");
}

TEST(Registers, WhoAsksBeforeOthersGiveBackWaits) {  // 232 + 2 * 136 = 3 * 168
  EXPECT_EQ(run(roles(setmaxnreg("inc", 232), setmaxnreg("dec", 136))), "");
}

TEST(Registers, TheSameNumberIsAllowed) {
  EXPECT_EQ(run(roles(setmaxnreg("dec", 168), setmaxnreg("inc", 168))), "");
}

TEST(Registers, MoreThanThePoolIsADeadlock) {  // 32 + 2 * 240 > 3 * 168
  EXPECT_THAT(run(roles(setmaxnreg("dec", 32), setmaxnreg("inc", 240))),
              AllOf(HasSubstr("deadlock"), HasSubstr("setmaxnreg.inc.sync.aligned.u32 240"),
                    HasSubstr("has 168 registers a thread and waits for 240")));
}

TEST(Registers, WarpsThatHaveEndedGiveNothingBack) {
  const std::string text =
      kernel(kBounds, 128, "ret;\n", setmaxnreg("inc", 176) + setmaxnreg("dec", 168));
  EXPECT_THAT(run(text), AllOf(HasSubstr("deadlock"), HasSubstr("setmaxnreg.inc")));
}

TEST(Registers, WrongNumbersAreErrors) {
  for (const int registers : {0, 16, 100, 264}) {
    EXPECT_THAT(run(roles(setmaxnreg("dec", registers), "")),
                HasSubstr("takes a multiple of 8 from 24 to 256, not " + std::to_string(registers)))
        << registers;
  }
}

TEST(Registers, WrongDirectionsAreErrors) {
  EXPECT_THAT(run(roles(setmaxnreg("dec", 176), "")),
              HasSubstr("setmaxnreg.dec to 176 registers, but the warp has 168"));
  EXPECT_THAT(run(roles(setmaxnreg("inc", 160), setmaxnreg("inc", 168))),
              HasSubstr("setmaxnreg.inc to 160 registers, but the warp has 168"));
}

TEST(Registers, PartOfAWarpIsAnError) {
  const std::string some = "setp.lt.u32 %p1, %r1, 16;\n@%p1 ";
  EXPECT_THAT(run(kernel(kBounds, 0, "", some + setmaxnreg("dec", 160))),
              HasSubstr("not all lanes of the warp execute this instruction"));
}

TEST(Registers, WarpsOfAWarpgroupExecuteTheSame) {
  EXPECT_THAT(run(kernel(kBounds, 64, setmaxnreg("dec", 160), setmaxnreg("dec", 160))),
              HasSubstr("another warp of the warpgroup has executed the setmaxnreg at PTX line"));
  EXPECT_THAT(run(kernel(kBounds, 64, setmaxnreg("dec", 160), "")),
              HasSubstr("has executed 0 setmaxnreg of the 1 of its warpgroup"));
}

}  // namespace
}  // namespace tilewright::emulator
