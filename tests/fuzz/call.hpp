// A call of the library, made from a fuzzer's input: mostly right, then spoiled in some way.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string_view>
#include <vector>

#include "fuzz/arena.hpp"
#include "fuzz/choices.hpp"
#include "fuzz/contract.hpp"
#include "tilewright/launch.hpp"

namespace tilewright::fuzz {

class Call {
 public:
  Call(Choices& choices, Arena& arena) : choices_(choices), arena_(arena) {}
  virtual ~Call() = default;
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  // Whether all tensors found room.
  bool is_complete() const { return has_room_; }

  // Changes a tensor or an option into something else.
  void spoil();

  // What the headers say of it.
  virtual void judge(Contract& contract) const = 0;

  // Whether the call can be made if it is accepted: it needs all of its memory, and not much of it.
  bool can_be_made() const;

  // Gives the inputs values, and nothing else.
  virtual void fill() = 0;

  // What the headers say of the values.
  virtual void judge_contents(Contract&) const {}

  // The bytes of workspace; nothing where the operation has no such query.
  virtual std::optional<std::size_t> workspace_bytes() const { return std::nullopt; }

  virtual void make(Workspace workspace) const = 0;

  // Ends the program if a result is wrong. It is not called if inputs overlap, or if there is no
  // right result for the inputs.
  virtual void check_results() const = 0;
  virtual bool has_one_result() const { return true; }

  const std::vector<Argument>& arguments() const { return arguments_; }
  bool inputs_overlap() const;

 protected:
  virtual void spoil_options() = 0;

  // Called when something was spoiled: what is an output may depend on what is given.
  virtual void update_outputs() {}
  void set_is_output(std::string_view name, bool is_output);

  // Adds an argument, or one that may be absent, with strides of this kind.
  void add(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
           Strides strides, bool is_output);
  void add_optional(std::string_view name, DType dtype, const std::vector<std::int64_t>& shape,
                    Strides strides, bool is_output, bool is_given);

  const Argument& operator[](std::string_view name) const;
  const TensorView& tensor(std::string_view name) const { return (*this)[name].tensor; }
  bool is_given(std::string_view name) const { return (*this)[name].is_given; }

  // The arguments as the library's structs have them.
  std::optional<TensorView> output(std::string_view name) const;
  std::optional<ConstTensorView> input(std::string_view name) const;

  // Puts one of the values into an element of the tensor, now and then.
  void put_somewhere(std::string_view name, const std::vector<float>& values);

  // Takes an argument out of the call.
  void withdraw(std::string_view name);

  // Gives an argument, and another tensor instead of its own.
  void replace(std::string_view name, const TensorView& tensor);

  Choices& choices_;
  Arena& arena_;

 private:
  void spoil_tensor();
  void spoil_description(TensorView& tensor);
  void spoil_address(TensorView& tensor);

  std::vector<Argument> arguments_;
  bool has_room_ = true;
};

// Any tensor's elements get values: normally distributed, or of bytes from `least` to `most`.
void fill_normal(const std::optional<ConstTensorView>& tensor, std::uint64_t seed);
void fill_bytes(const std::optional<ConstTensorView>& tensor, std::uint64_t seed, int least,
                int most);

// Ends the program with the message if any element is further from its expected value than its
// bound, or has no NaN or infinity where one is expected. Expected values and bounds are dense.
void check_near(const ConstTensorView& actual, const std::vector<double>& expected,
                const std::vector<double>& bounds, const char* message);

// Half the distance between neighbours of a number in a dtype: what rounding may change.
double rounding_of(DType dtype, double value);

std::unique_ptr<Call> make_attention(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_kvcache(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_gemm(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_quantize(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_dequantize(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_swizzle(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_unswizzle(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_prepack(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_unpack(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_merge(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_rope(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_quantize_kv_rows(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_dequantize_kv_rows(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_append(Choices& choices, Arena& arena);
std::unique_ptr<Call> make_dsv4(Choices& choices, Arena& arena);

}  // namespace tilewright::fuzz
