// Any bytes as a results file that a sweep resumes and adds a line to. The file is refused with a
// message that a terminal can show, and stays as it is; or it has its whole lines afterwards, byte
// for byte, then the new one. "COMMIT" stands for this build's own.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "cli/commands.hpp"
#include "cli/results_file.hpp"
#include "fuzz/check.hpp"
#include "fuzz/json_mutator.hpp"
#include "tilewright/version.hpp"

extern "C" std::size_t LLVMFuzzerMutate(std::uint8_t* data, std::size_t size, std::size_t max_size);

namespace tilewright::fuzz {
namespace {

Tally resumed("files were resumed");
Tally skipped("of them had the case that was asked for");

// A folder of this process alone; in memory where the system has such a place.
class Folder {
 public:
  Folder() {
    const std::filesystem::path memory = "/dev/shm";
    const auto where =
        std::filesystem::exists(memory) ? memory : std::filesystem::temp_directory_path();
    path_ = where / ("results_fuzz." + std::to_string(getpid()));
    std::filesystem::create_directory(path_);
  }
  ~Folder() { std::filesystem::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
}

std::string with_commit(std::string text) {
  constexpr std::string_view kPlaceholder = "COMMIT";
  for (std::size_t at = 0; (at = text.find(kPlaceholder, at)) != std::string::npos;) {
    text.replace(at, kPlaceholder.size(), kCommit);
    at += std::string_view(kCommit).size();
  }
  return text;
}

// Of the old content, what is before the last line's end must stay; of what is behind it all or
// nothing.
void check_kept(const std::string& before, const std::string& after, const std::string& line) {
  const std::string whole_lines = before.substr(0, before.rfind('\n') + 1);
  const std::string ended = before.ends_with('\n') || before.empty() ? before : before + '\n';
  check(after == whole_lines + line || after == ended + line, "lines were lost or changed");
}

void resume(const std::filesystem::path& path, const std::string& before) {
  static const cli::Json line = {{"impl", "new"}, {"impl_version", kCommit}, {"gpu", "g"}};
  static const cli::Json asked = {{"dtype", "bf16"}, {"batch", 1},   {"q_len", 1},
                                  {"kv_len", 1},     {"heads", 1},   {"kv_heads", 1},
                                  {"head_dim", 128}, {"v_dim", 128}, {"causal", false}};
  cli::ResultsFile file(path, /*resume=*/true);
  ++resumed;
  if (file.contains(asked, "tilewright/cpu", "g")) {
    ++skipped;
  }
  check(content_of(path) == before, "the file changed before its first line");
  file.append(line);
  const std::string after = content_of(path);
  const std::size_t last = after.rfind('\n', after.size() - 2) + 1;  // npos + 1 is 0
  const cli::Json added = cli::Json::parse(after.substr(last));
  check(added.at("impl") == "new" && added.at("run").is_string(), "the new line is another");
  check_kept(before, after, after.substr(last));
}

}  // namespace
}  // namespace tilewright::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace tilewright;
  static const fuzz::Folder folder;
  const std::filesystem::path path = folder.path() / "out.jsonl";
  const std::string before = fuzz::with_commit({data, data + size});
  std::ofstream(path, std::ios::binary) << before;
  try {
    fuzz::resume(path, before);
  } catch (const cli::UsageError& error) {
    fuzz::check_printable(error.what());
    fuzz::check(fuzz::content_of(path) == before, "a file that was refused changed");
  }
  const auto files = std::distance(std::filesystem::directory_iterator(folder.path()), {});
  fuzz::check(files == 1, "something is left beside the file");
  return 0;
}

// One of the lines changes, comes, goes, or the end is cut off.
extern "C" std::size_t LLVMFuzzerCustomMutator(std::uint8_t* data, std::size_t size,
                                               std::size_t max_size, unsigned seed) {
  using namespace tilewright::fuzz;
  Random random(seed);
  if (random.one_in(16)) {
    return LLVMFuzzerMutate(data, size, max_size);
  }
  std::string text(data, data + size);
  const std::size_t begin = text.rfind('\n', random.below(text.size() + 1)) + 1;  // npos + 1 is 0
  const std::size_t end = std::min(text.find('\n', begin), text.size());
  std::string line = text.substr(begin, end - begin);
  switch (random.below(8)) {
    case 0:
      text.resize(random.below(text.size() + 1));
      break;
    case 1:
      text.insert(begin, line + '\n');
      break;
    case 2:
      text.erase(begin, end + 1 - begin);
      break;
    default:
      mutate_json(line, random);
      text.replace(begin, end - begin, line);
  }
  const std::size_t bytes = std::min(text.size(), max_size);
  std::copy_n(text.begin(), bytes, data);
  return bytes;
}
