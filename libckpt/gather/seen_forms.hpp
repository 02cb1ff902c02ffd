// SeenForms: the types and shapes in which ranks have one tensor, as far as an error names them:
// the lowest rank's, and that of the lowest rank that has another one.
//
// It is the same whatever the order in which ranks are added.
#pragma once

#include <ckpt/tensor.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::gather {

struct SeenForm {
  std::uint32_t rank = 0;
  DType dtype = DType::u8;
  std::vector<std::uint64_t> shape;
  bool is_form_of(const SeenForm& other) const {
    return dtype == other.dtype && shape == other.shape;
  }
};

class SeenForms {
 public:
  void add(SeenForm seen);
  void add(const SeenForms& seen);

  const std::optional<SeenForm>& first() const { return first_; }
  const std::optional<SeenForm>& other() const { return other_; }

 private:
  std::optional<SeenForm> first_;
  std::optional<SeenForm> other_;
};

// For people, where there is another form: names the tensor, both ranks and both forms.
std::string contradiction_of(std::string_view tensor, const SeenForms& forms);

}  // namespace ckpt::gather
