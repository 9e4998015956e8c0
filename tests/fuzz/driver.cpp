// Runs a fuzz target without libFuzzer, with options of the same names:
//
//   TARGET [-runs=N] [-seed=N] [-max_len=BYTES] FOLDER...
//
// Every file of the folders is an input; so are N mutants of them, which the target's own mutator
// makes. Runs with the same seed are the same. The last input is in TARGET.last_input during the
// run, and stays there if the program crashes.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/choices.hpp"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed);

extern "C" __attribute__((weak)) int LLVMFuzzerInitialize(int* argc, char*** argv);

namespace tilewright::fuzz {
namespace {

using Input = std::vector<std::uint8_t>;

struct Options {
  std::uint64_t runs = 10000;
  std::uint64_t seed = 1;
  std::size_t max_len = 4096;
  std::vector<std::string> folders;
};

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const auto value = [&] {
      return std::stoull(std::string(argument.substr(argument.find('=') + 1)));
    };
    if (argument.starts_with("-runs=")) {
      options.runs = value();
    } else if (argument.starts_with("-seed=")) {
      options.seed = value();
    } else if (argument.starts_with("-max_len=")) {
      options.max_len = value();
    } else {
      options.folders.emplace_back(argument);
    }
  }
  return options;
}

std::vector<Input> read_inputs(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> paths;
  for (const std::string& folder : folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      paths.push_back(entry.path());
    }
  }
  std::ranges::sort(paths);
  std::vector<Input> inputs;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    inputs.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  if (inputs.empty()) {
    inputs.emplace_back();
  }
  return inputs;
}

class LastInput {
 public:
  explicit LastInput(const std::string& path)
      : path_(path), file_(open(path.c_str(), O_RDWR | O_CREAT, 0666)) {}
  ~LastInput() {
    close(file_);
    unlink(path_.c_str());
  }
  LastInput(const LastInput&) = delete;
  LastInput& operator=(const LastInput&) = delete;

  void run(const Input& input) const {
    if (pwrite(file_, input.data(), input.size(), 0) != static_cast<ssize_t>(input.size()) ||
        ftruncate(file_, static_cast<off_t>(input.size())) != 0) {
      std::perror(path_.c_str());
      std::exit(2);
    }
    LLVMFuzzerTestOneInput(input.data(), input.size());
  }

 private:
  std::string path_;
  int file_;
};

Input mutant_of(Input input, Random& random, std::size_t max_len) {
  std::size_t size = std::min(input.size(), max_len);
  input.resize(max_len);
  for (std::size_t i = random.below(3) + 1; i > 0; --i) {
    size = LLVMFuzzerCustomMutator(input.data(), size, max_len,
                                   static_cast<unsigned>(random.below(std::size_t{1} << 32)));
  }
  input.resize(size);
  return input;
}

}  // namespace
}  // namespace tilewright::fuzz

// What libFuzzer's own mutations do: a byte or a bit changes, comes, goes or is copied.
extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size,
                                        std::size_t max_size) {
  static tilewright::fuzz::Random random(1);
  const std::size_t at = random.below(size + 1);
  const std::size_t kind = size == 0 ? 0 : random.below(4);
  if (kind == 0 && size < max_size) {
    std::memmove(data + at + 1, data + at, size - at);
    data[at] = static_cast<std::uint8_t>(random.below(256));
    return size + 1;
  }
  if (at == size) {
    return size;
  }
  switch (kind) {
    case 1:
      std::memmove(data + at, data + at + 1, size - at - 1);
      return size - 1;
    case 2:
      data[at] = static_cast<std::uint8_t>(data[at] ^ 1u << random.below(8));
      return size;
    default:
      data[at] = data[random.below(size)];
      return size;
  }
}

int main(int argc, char** argv) {
  using namespace tilewright::fuzz;
  if (LLVMFuzzerInitialize != nullptr) {
    LLVMFuzzerInitialize(&argc, &argv);
  }
  const Options options = parse(argc, argv);
  const std::vector<Input> inputs = read_inputs(options.folders);
  const std::string name = std::filesystem::path(argv[0]).filename();
  const LastInput last(name + ".last_input");
  for (const Input& input : inputs) {
    last.run(input);
  }
  Random random(options.seed);
  for (std::uint64_t i = 0; i < options.runs; ++i) {
    last.run(mutant_of(random.one_of(inputs), random, options.max_len));
  }
  std::fprintf(stderr, "%s: %zu inputs, %llu mutants, seed %llu\n", name.c_str(), inputs.size(),
               static_cast<unsigned long long>(options.runs),
               static_cast<unsigned long long>(options.seed));
}
