// What the public headers say of a call, as rules over its tensors. Written from the headers alone,
// so that it can disagree with the library.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "fuzz/arena.hpp"
#include "tilewright/tensor.hpp"

namespace tilewright::fuzz {

// A tensor of a call, by the name that errors have for it.
struct Argument {
  std::string_view name;
  TensorView tensor{};
  bool is_output = false;
  bool is_optional = false;
  bool is_given = true;
};

// A size that a rule leaves open.
inline constexpr std::int64_t kAny = -1;

// The size as a number; open if no tensor has it.
std::int64_t known(std::int64_t size);

class Contract {
 public:
  explicit Contract(Arena& arena) : arena_(arena) {}

  // A rule is broken: the call must be refused, for this argument or for another one.
  void refuse(std::string_view argument) { broken_.emplace_back(argument); }

  // The same for a tensor's contents, which a query of the workspace does not see.
  void refuse_contents(std::string_view argument) { broken_contents_.emplace_back(argument); }

  // The headers do not say: to refuse it for this argument is right, to accept it, too.
  void doubt(std::string_view argument) { doubts_.emplace_back(argument); }

  // The device cannot run it: the error may name any argument.
  void refuse_device() { is_refused_for_device_ = true; }

  bool query_must_be_refused() const { return is_refused_for_device_ || !broken_.empty(); }
  bool must_be_refused() const { return query_must_be_refused() || !broken_contents_.empty(); }
  bool must_be_accepted() const { return !must_be_refused() && doubts_.empty(); }
  bool may_name(std::string_view argument) const;

  // The arguments for which it must be refused.
  std::string text() const;

  // What holds of every tensor (see tensor.hpp), and the shape. Whether the rank is right, so that
  // sizes can be asked for.
  bool has_shape(const Argument& argument, const std::vector<std::int64_t>& shape);

  void has_dtype(const Argument& argument, std::initializer_list<DType> dtypes);

  // The strides of a tensor that has_shape().
  void has_strides(const Argument& argument, Strides strides);

  // One device for all, and one that this build has: the CPU.
  void on_one_device(const std::vector<Argument>& arguments);

  // No output shares a byte with another one or an input, nor an element with another of its own.
  // Of tensors that has_shape(). `ignored`, if given, is an output and an input that may be the
  // same.
  void outputs_are_apart(const std::vector<Argument>& arguments,
                         std::optional<std::pair<std::string_view, std::string_view>> ignored = {});

 private:
  bool has_extent(const Argument& argument);
  bool is_sound(const Argument& argument) const;
  void is_apart_from_itself(const Argument& output);
  void is_apart(const Argument& output, const Argument& other);

  Arena& arena_;
  std::vector<std::string> sound_;  // the tensors that lie somewhere
  std::vector<std::string> broken_;
  std::vector<std::string> broken_contents_;
  std::vector<std::string> doubts_;
  bool is_refused_for_device_ = false;
};

}  // namespace tilewright::fuzz
