# Where the headers of the CUDA driver are. Only headers: the driver itself is opened at run time,
# so that one binary serves machines with and without a GPU.
#
# Sets CKPT_CUDA_INCLUDE_DIR, empty for a host-only build. Looked for in a toolkit, then in the
# wheel `nvidia-cuda-runtime` of whatever Python is found.
option(CKPT_CUDA "Capture from GPUs, where CUDA's headers are found" ON)
set(cuda_version_min 12080)  # The first that has the types of batched copies.

function(ckpt_find_cuda_headers result)
  set(candidates "")
  find_package(CUDAToolkit QUIET)
  if(CUDAToolkit_FOUND)
    list(APPEND candidates ${CUDAToolkit_INCLUDE_DIRS})
  endif()
  list(APPEND candidates /usr/local/cuda/include)
  find_package(Python3 QUIET COMPONENTS Interpreter)
  if(Python3_Interpreter_FOUND)
    set(print_places "import site, sysconfig"
      "print(sysconfig.get_path('purelib'), site.getusersitepackages(), sep=chr(59))")
    list(JOIN print_places "\n" print_places)
    execute_process(COMMAND ${Python3_EXECUTABLE} -c "${print_places}"
      OUTPUT_VARIABLE places OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
    foreach(place IN LISTS places)
      file(GLOB wheels ${place}/nvidia/*/include)
      list(APPEND candidates ${wheels})
    endforeach()
  endif()
  set(${result} "" PARENT_SCOPE)
  foreach(candidate IN LISTS candidates)
    if(NOT EXISTS ${candidate}/cuda.h OR NOT EXISTS ${candidate}/cudaTypedefs.h)
      continue()
    endif()
    file(STRINGS ${candidate}/cuda.h version REGEX "^#define CUDA_VERSION +[0-9]+")
    string(REGEX MATCH "[0-9]+" version "${version}")
    if(version GREATER_EQUAL cuda_version_min)
      set(${result} ${candidate} PARENT_SCOPE)
      message(STATUS "GPU captures: yes, by the headers of CUDA ${version} in ${candidate}")
      return()
    endif()
  endforeach()
  message(STATUS "GPU captures: no, a host-only build: found no headers of CUDA 12.8 or newer "
    "(install a toolkit, or the Python package nvidia-cuda-runtime)")
endfunction()

set(CKPT_CUDA_INCLUDE_DIR "")
if(CKPT_CUDA)
  ckpt_find_cuda_headers(CKPT_CUDA_INCLUDE_DIR)
else()
  message(STATUS "GPU captures: no, a host-only build: CKPT_CUDA is off")
endif()

# Targets that include device/cuda_*.hpp or the driver's headers link this.
add_library(ckpt_cuda_headers INTERFACE)
if(CKPT_CUDA_INCLUDE_DIR)
  target_include_directories(ckpt_cuda_headers SYSTEM INTERFACE ${CKPT_CUDA_INCLUDE_DIR})
endif()
