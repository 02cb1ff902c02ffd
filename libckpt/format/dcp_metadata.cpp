// As torch 2.2 and later write and read it. Attributes that came later have defaults there.
#include "format/dcp_metadata.hpp"

#include <string_view>

#include "format/pickle_writer.hpp"
#include "format/torch_pickle_write.hpp"

namespace ckpt::format {

namespace {

constexpr std::string_view classes = "torch.distributed.checkpoint.metadata.";
constexpr std::string_view storage_info = "torch.distributed.checkpoint.filesystem._StorageInfo";

void begin_object(PickleWriter& pickle, std::string_view name) {
  pickle.begin_object(std::string(classes) + std::string(name));
}

// A function, and its only argument, which `put_argument` writes.
template <class PutArgument>
void put_call(PickleWriter& pickle, std::string_view function, PutArgument put_argument) {
  pickle.shared_name(function);
  pickle.mark();
  put_argument();
  pickle.tuple();
  pickle.op('R');
}

void put_size(PickleWriter& pickle, std::span<const std::uint64_t> values) {
  put_call(pickle, "torch.Size", [&] { pickle.numbers(values); });
}

std::vector<std::uint64_t> origin_of(const DcpTensor& tensor) {
  return std::vector<std::uint64_t>(tensor.shape.size(), 0);
}

// Its state is a tuple: type, layout, requires_grad, order of the dimensions, pinned.
void put_properties(PickleWriter& pickle, const DcpTensor& tensor) {
  pickle.shared_name(std::string(classes) + "TensorProperties");
  pickle.op(')');
  pickle.op('\x81');
  pickle.mark();
  pickle.shared_name(torch_dtype_name(tensor.dtype));
  put_call(pickle, "torch.serialization._get_layout", [&] { pickle.shared_text("torch.strided"); });
  pickle.op('\x89');  // False.
  constexpr std::uint64_t contiguous = 0;
  put_call(pickle, std::string(classes) + "_MEM_FORMAT_ENCODING",
           [&] { pickle.integer(contiguous); });
  pickle.op('\x89');
  pickle.tuple();
  pickle.op('b');
}

void put_dcp_tensor(PickleWriter& pickle, const DcpTensor& tensor) {
  begin_object(pickle, "TensorStorageMetadata");
  pickle.shared_text("properties");
  put_properties(pickle, tensor);
  pickle.shared_text("size");
  put_size(pickle, tensor.shape);
  pickle.shared_text("chunks");
  pickle.op(']');
  begin_object(pickle, "ChunkStorageMetadata");
  pickle.shared_text("offsets");
  put_size(pickle, origin_of(tensor));
  pickle.shared_text("sizes");
  put_size(pickle, tensor.shape);
  pickle.end_object();
  pickle.op('a');  // The list has it.
  pickle.end_object();
}

// Where the only chunk of the tensor is stored.
void put_place(PickleWriter& pickle, const DcpTensor& tensor) {
  begin_object(pickle, "MetadataIndex");
  pickle.shared_text("fqn");
  pickle.text(tensor.name);
  pickle.shared_text("offset");
  put_size(pickle, origin_of(tensor));
  pickle.shared_text("index");
  pickle.integer(0);
  pickle.end_object();
  pickle.begin_object(storage_info);
  pickle.shared_text("relative_path");
  pickle.shared_text(dcp_file_name);
  pickle.shared_text("offset");
  pickle.integer(tensor.archive.offset);
  pickle.shared_text("length");
  pickle.integer(tensor.archive.bytes);
  pickle.end_object();
}

}  // namespace

std::vector<std::byte> write_dcp_metadata(std::span<const DcpTensor> tensors) {
  PickleWriter pickle;
  begin_object(pickle, "Metadata");
  pickle.text("state_dict_metadata");
  pickle.op('}');
  pickle.mark();
  for (const DcpTensor& tensor : tensors) {
    pickle.text(tensor.name);
    put_dcp_tensor(pickle, tensor);
  }
  pickle.op('u');
  pickle.text("planner_data");  // The keys on the way to a tensor: its name alone.
  pickle.op('}');
  pickle.mark();
  for (const DcpTensor& tensor : tensors) {
    pickle.text(tensor.name);
    pickle.mark();
    pickle.text(tensor.name);
    pickle.tuple();
  }
  pickle.op('u');
  pickle.text("storage_data");
  pickle.op('}');
  pickle.mark();
  for (const DcpTensor& tensor : tensors) put_place(pickle, tensor);
  pickle.op('u');
  pickle.end_object();
  return pickle.take();
}

}  // namespace ckpt::format
