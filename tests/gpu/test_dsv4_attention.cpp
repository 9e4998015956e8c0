// Every CUDA kernel of dsv4_attention() and each of its variants against the float64 oracle.
#include <array>
#include <cstring>
#include <limits>

#include "dsv4_device.hpp"
#include "dsv4_test.hpp"
#include "problems/dsv4_expectation.hpp"
#include "problems/dsv4_forms.hpp"

namespace tilewright::test {
namespace {

// Runs twice: right, bit-equal, and nothing written outside the outputs.
void check_problem(const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
  Dsv4DeviceProblem device(make_tensors(problem));
  Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
  run(device.views(), options);
  Dsv4HostTensors first = device.results();
  expect_right(problem, first);
  EXPECT_TRUE(device.guards_untouched());

  device.reset_outputs();
  options.check_values = true;  // which changes nothing
  run(device.views(), options);
  Dsv4HostTensors second = device.results();
  expect_same_bits(first, second);
}

TEST_F(Dsv4Gpu, SmallProblems) {
  for_each_problem(kernels_and_variants(), small_dsv4_problems, check_problem);
}

TEST_F(Dsv4Gpu, FlashMlasProblems) {
  for_each_problem(usable_kernels(), flash_mla_problems, check_problem);
}

TEST_F(Dsv4Gpu, RandomProblems) {
  constexpr int kCount = 2000;
  for_each_problem(
      usable_kernels(),
      [](const Dsv4Choices& choices) { return random_dsv4_problems(choices, kCount); },
      check_problem);
}

TEST_F(Dsv4Gpu, RandomProblemsOfVariants) {
  constexpr int kCount = 200;
  for (const Dsv4Kernel* const kernel : usable_kernels()) {
    for (const Dsv4Kernel& variant : kernel->variants) {
      for_each_problem(
          {&variant},
          [](const Dsv4Choices& choices) { return random_dsv4_problems(choices, kCount, 7); },
          check_problem);
    }
  }
}

// Each request by itself writes the bits that it wrote in its batch.
TEST_F(Dsv4Gpu, RowsDoNotDependOnTheirNeighbours) {
  constexpr int kCount = 150;
  for_each_problem(
      usable_kernels(),
      [](const Dsv4Choices& choices) { return random_dsv4_problems(choices, kCount, 3); },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        const Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
        Dsv4DeviceProblem together(make_tensors(problem));
        Dsv4DeviceProblem apart(make_tensors(problem));
        run(together.views(), options);
        for (std::size_t b = 0; b < problem.batch(); ++b) {
          if (problem.q_lens[b] > 0) {
            run(alone(problem, apart.views(), b), options);
          }
        }
        Dsv4HostTensors expected = together.results();
        Dsv4HostTensors results = apart.results();
        expect_same_bits(expected, results);
      });
}

// Some of a batch's requests write the bits that they write alone.
void expect_same_bits_alone(const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
  const Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
  const std::size_t batch = problem.batch();
  Dsv4DeviceProblem together(make_tensors(problem));
  Dsv4DeviceProblem apart(make_tensors(problem));
  run(together.views(), options);
  for (const std::size_t b : {std::size_t{0}, batch / 3, batch - 1}) {
    run(alone(problem, apart.views(), b), options);
    const Dsv4HostTensors expected = together.results();
    const Dsv4HostTensors results = apart.results();
    const std::size_t bytes = expected.o.bytes() / batch;
    EXPECT_EQ(std::memcmp(expected.o.data() + b * bytes, results.o.data() + b * bytes, bytes), 0)
        << "request " << b;
  }
}

// Blocks have whole items in the first round, and share the last ones.
TEST_F(Dsv4Gpu, RowsDoNotDependOnTheSizeOfTheBatch) {
  constexpr std::size_t kBatch = 140;
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems = seed_problems();
        for (Dsv4Problem& problem : problems) {
          problem.q_lens.assign(kBatch, 1);
          problem.window.ends.assign(kBatch, 300);
          problem.heads = choices.heads.back();
          problem.window.format = choices.window_formats.front();
          problem.compressed.format = choices.compressed_formats.front();
        }
        return problems;
      },
      expect_same_bits_alone);
}

// A few heads of a token, whose GEMMs are transposed unless rows are BF16, have the bits that they
// have among many: in every config and format, and in batches whose items several blocks share.
TEST_F(Dsv4Gpu, HeadsDoNotDependOnHowManyThereAre) {
  constexpr std::int64_t kFew = 16;
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems;
        for (const std::size_t batch : {5, 40, 140}) {
          for (const KvRowFormat format : choices.compressed_formats) {
            Dsv4Problem& problem = problems.emplace_back(seed_problems().front());
            problem.q_lens.assign(batch, 1);
            problem.heads = 64;
            problem.sinks = Dsv4Sinks::normal;
            problem.window = {.keys = Dsv4Keys::range,
                              .format = format,
                              .ends = std::vector<int>(batch, 200),
                              .has_table = true};
            problem.compressed.format = format;
            problem.seed = batch;
          }
        }
        for (const std::size_t batch : {2, 30}) {  // with several parts, and an odd number of tiles
          Dsv4Problem& problem = problems.emplace_back();
          problem.q_lens.assign(batch, 1);
          problem.heads = 64;
          problem.unnormalized = true;
          problem.window = {.keys = Dsv4Keys::range,
                            .format = choices.window_formats.back(),
                            .ends = std::vector<int>(batch, 2850),
                            .has_table = true};
        }
        return problems;
      },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        const Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
        Dsv4DeviceProblem together(make_tensors(problem));
        Dsv4DeviceProblem apart(make_tensors(problem));
        run(together.views(), options);
        for (std::int64_t first = 0; first < problem.heads; first += kFew) {
          run(of_heads(apart.views(), first, kFew), options);
        }
        Dsv4HostTensors expected = together.results();
        Dsv4HostTensors results = apart.results();
        expect_same_bits(expected, results);
      });
}

// Batches of requests with several parts: their first parts are whole, and some last ones shared.
TEST_F(Dsv4Gpu, PartsDoNotDependOnTheSizeOfTheBatch) {
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems;
        for (const std::size_t batch : {3, 10, 30}) {
          Dsv4Problem& problem = problems.emplace_back();
          problem.q_lens.assign(batch, 1);
          problem.heads = choices.heads.back();
          problem.sinks = Dsv4Sinks::normal;
          problem.window = {.keys = Dsv4Keys::range,
                            .format = choices.window_formats.front(),
                            .ends = std::vector<int>(batch, 3000),
                            .has_table = true};
        }
        return problems;
      },
      expect_same_bits_alone);
}

TEST_F(Dsv4Gpu, PagesChangeNoBit) {
  constexpr int kCount = 150;
  for_each_problem(
      usable_kernels(),
      [](const Dsv4Choices& choices) { return random_dsv4_problems(choices, kCount, 2); },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        const Dsv4HostTensors tensors = make_tensors(problem);
        Dsv4DeviceProblem device(tensors);
        Dsv4DeviceProblem moved(with_moved_pages(problem, tensors));
        run(device.views(), options_of(problem, kernel.info.name));
        run(moved.views(), options_of(problem, kernel.info.name));
        Dsv4HostTensors a = device.results();
        Dsv4HostTensors b = moved.results();
        expect_same_bits(a, b);
      });
}

TEST_F(Dsv4Gpu, PartsOverAnyCutMergeToTheWhole) {
  constexpr int kCount = 150;
  for_each_problem(
      usable_kernels(),
      [](const Dsv4Choices& choices) {
        return choices.allows(Dsv4Feature::unnormalized) ? problems_to_cut(choices, kCount)
                                                         : std::vector<Dsv4Problem>();
      },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        std::vector<Dsv4HostTensors> parts =
            in_parts(problem, 1 + static_cast<int>(problem.seed % 4));
        for (Dsv4HostTensors& part : parts) {
          Dsv4DeviceProblem device(part);
          run(device.views(), options_of(problem, kernel.info.name));
          part = device.results();
        }
        expect_right(problem, merged(problem, parts));
      });
}

TEST_F(Dsv4Gpu, IsAsNearAsTheSeedAsks) {
  for_each_problem(
      kernels_and_variants(), [](const Dsv4Choices&) { return seed_problems(); },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        Dsv4DeviceProblem device(make_tensors(problem));
        run(device.views(), options_of(problem, kernel.info.name));
        expect_near_as_seed(problem, device.results());
      });
}

// ---- Values out of range, which are not checked

// A call with such values writes nothing beside its outputs, and is refused if it looks at them.
void expect_no_stray_access(const Dsv4HostTensors& host, Dsv4AttentionOptions options) {
  Dsv4DeviceProblem device(host);
  run(device.views(), options);
  EXPECT_TRUE(device.guards_untouched());
  options.check_values = true;
  EXPECT_THROW(run(device.views(), options), Error);
}

// Problems with scopes, whose keys no ring holds: any position is in one.
std::vector<Dsv4Problem> problems_to_spoil(const Dsv4Choices& choices) {
  std::vector<Dsv4Problem> problems = small_dsv4_problems(choices);
  std::erase_if(problems, [](const Dsv4Problem& problem) {
    return problem.window.ring > 0 ||
           (problem.window.keys == Dsv4Keys::none && problem.compressed.keys == Dsv4Keys::none);
  });
  problems.resize(std::min(problems.size(), std::size_t{40}));
  return problems;
}

TEST_F(Dsv4Gpu, ValuesOutOfRangeDoNotStray) {
  constexpr double kWildInts[] = {-7.0, 1e9, 2147483647.0, -2147483648.0};
  for_each_problem(kernels_and_variants(), problems_to_spoil,
                   [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
                     for (const double wild : kWildInts) {
                       Dsv4HostTensors host = make_tensors(problem);
                       for (auto* const scope : {&host.window, &host.compressed}) {
                         if (*scope) {
                           (*scope)->for_each([&](reference::HostTensor& tensor) {
                             if (tensor.view().dtype == DType::int32) {
                               reference::fill_constant(tensor.view(), wild);
                             }
                           });
                         }
                       }
                       expect_no_stray_access(host, options_of(problem, kernel.info.name));
                     }
                   });
}

TEST_F(Dsv4Gpu, PositionsOutOfRangeDoNotStray) {
  constexpr double kWildPositions[] = {-1.0, 300.0, 1e15, -1e15};
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems = small_dsv4_problems(choices);
        std::erase_if(problems, [](const Dsv4Problem& problem) { return !problem.inverse_rope; });
        return problems;
      },
      [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        for (const double wild : kWildPositions) {
          Dsv4HostTensors host = make_tensors(problem);
          reference::fill_constant(host.positions->view(), wild);
          expect_no_stray_access(host, options_of(problem, kernel.info.name));
        }
      });
}

// Slots out of range count as no key: the bits are those of a list with -1 there.
TEST_F(Dsv4Gpu, SlotsOutOfRangeAreNoKeys) {
  constexpr std::array kWild = {-2, 1 << 30, std::numeric_limits<int>::min(), 1 << 20};
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems = small_dsv4_problems(choices);
        std::erase_if(problems, [](const Dsv4Problem& p) { return !p.compressed.is_list(); });
        return problems;
      },
      [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        const Dsv4HostTensors host = make_tensors(problem);
        Dsv4HostTensors wild = host;
        auto* const indices = reinterpret_cast<int*>(wild.compressed->indices->data());
        for (std::size_t i = 0; i < wild.compressed->indices->bytes() / sizeof(int); ++i) {
          indices[i] = indices[i] == -1 ? kWild[i % kWild.size()] : indices[i];
        }
        Dsv4DeviceProblem of_host(host);
        Dsv4DeviceProblem of_wild(wild);
        run(of_host.views(), options_of(problem, kernel.info.name));
        run(of_wild.views(), options_of(problem, kernel.info.name));
        Dsv4HostTensors a = of_host.results();
        Dsv4HostTensors b = of_wild.results();
        expect_same_bits(a, b);
      });
}

// Lengths beyond the list, and ends beyond the pages, count as those.
TEST_F(Dsv4Gpu, LengthsBeyondTheCapacityCountAsTheCapacity) {
  constexpr double kFar = 1 << 30;
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems = small_dsv4_problems(choices);
        std::erase_if(problems, [](const Dsv4Problem& p) {
          return p.window.keys != Dsv4Keys::range || !p.compressed.is_list() || p.window.ring > 0 ||
                 p.window.capacity > 0;
        });
        for (Dsv4Problem& p : problems) {
          const auto full = static_cast<int>(2 * p.window.page_size);
          p.window.ends.assign(p.batch(), full);
          p.window.advance = 0;
          p.compressed.ends.assign(p.batch(), static_cast<int>(p.compressed.entries));
          p.compressed.has_lengths = true;
        }
        return problems;
      },
      [&](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        Dsv4HostTensors host = make_tensors(problem);
        reference::fill_constant(host.window->range_end->view(), kFar);
        reference::fill_constant(host.compressed->list_lengths->view(), kFar);
        Dsv4DeviceProblem device(host);
        run(device.views(), options_of(problem, kernel.info.name));
        expect_right(problem, device.results());
      });
}

// A range from 0 on that is longer than its ring, or than its bound: the last so many positions
// count.
TEST_F(Dsv4Gpu, RangesBeyondTheirBoundCountAsItsLastPositions) {
  for_each_problem(
      kernels_and_variants(),
      [](const Dsv4Choices& choices) {
        std::vector<Dsv4Problem> problems = small_dsv4_problems(choices);
        std::erase_if(problems, [](const Dsv4Problem& p) {
          return p.window.ring == 0 && p.window.most_keys == 0;
        });
        for (Dsv4Problem& p : problems) {
          p.window.most = p.window.most_keys > 0 ? p.window.most_keys : p.window.ring;
        }
        return problems;
      },
      [](const Dsv4Problem& problem, const Dsv4Kernel& kernel) {
        Dsv4HostTensors host = make_tensors(problem);
        host.window->range_begin.reset();
        Dsv4DeviceProblem device(host);
        Dsv4AttentionOptions options = options_of(problem, kernel.info.name);
        run(device.views(), options);
        expect_right(problem, device.results());
        options.check_values = true;
        EXPECT_THROW(run(device.views(), options), Error);
      });
}

}  // namespace
}  // namespace tilewright::test
