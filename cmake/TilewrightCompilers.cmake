# Compiler flags and the search for CUDA.
#   tilewright_warnings   interface target: every warning is an error, in C++ and CUDA
#   tilewright_cuda       interface target: flags and headers of CUDA sources (with CUDA only)
#   TILEWRIGHT_HAS_CUDA   whether the CUDA kernels are built
#   TILEWRIGHT_COMMIT     the source's commit, for results files

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(tilewright_warnings INTERFACE)
target_compile_options(tilewright_warnings INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Wpedantic -Wshadow -Werror>
  $<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra -Werror=all-warnings>)

# git's short commit, or the version where the source is no checkout (a source distribution).
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=10 HEAD
  OUTPUT_VARIABLE TILEWRIGHT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT TILEWRIGHT_COMMIT)
  set(TILEWRIGHT_COMMIT ${PROJECT_VERSION})
endif()

set(TILEWRIGHT_HAS_CUDA OFF)
if(TILEWRIGHT_CUDA STREQUAL "OFF")
  return()
endif()

# The set-up script keeps PyPI's packages in .venv, nvcc among them where the system has none.
file(GLOB venv_packages ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
find_path(CUTLASS_INCLUDE_DIR cute/tensor.hpp
  HINTS ${venv_packages} ENV CUTLASS_PATH
  PATH_SUFFIXES cutlass_library/source/include include
  DOC "CUTLASS 4.2's include directory")
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(CMAKE_CUDA_COMPILER nvcc
    HINTS /usr/local/cuda/bin ${venv_packages}/nvidia/cu13/bin)
endif()
include(CheckLanguage)
check_language(CUDA)

if(NOT CMAKE_CUDA_COMPILER OR NOT CUTLASS_INCLUDE_DIR)
  if(TILEWRIGHT_CUDA STREQUAL "ON")
    message(FATAL_ERROR "TILEWRIGHT_CUDA=ON needs nvcc 13.0 (found: ${CMAKE_CUDA_COMPILER}) and "
      "CUTLASS 4.2's headers (CUTLASS_INCLUDE_DIR: ${CUTLASS_INCLUDE_DIR}); ./run setup brings both")
  endif()
  message(STATUS "CUDA: off (nvcc: ${CMAKE_CUDA_COMPILER}, CUTLASS: ${CUTLASS_INCLUDE_DIR})")
  return()
endif()

# CMake 3.25 must be told of an architecture before it tries the compiler, and does not know how
# nvcc 13 is asked for C++20.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit 13.0 REQUIRED)
find_package(Python3 REQUIRED COMPONENTS Interpreter)

# The launcher fails the build on what ptxas only mentions, and keeps its report beside the object.
set(CMAKE_CUDA_COMPILER_LAUNCHER
  ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/nvcc_launcher.py ${CCACHE_PROGRAM})

add_library(tilewright_cuda INTERFACE)
target_compile_options(tilewright_cuda INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-O3 --expt-relaxed-constexpr
  -Xptxas=-v,--warn-on-spills,--warning-as-error>)
target_compile_definitions(tilewright_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:NDEBUG>)
target_include_directories(tilewright_cuda SYSTEM INTERFACE ${CUTLASS_INCLUDE_DIR})
target_link_libraries(tilewright_cuda INTERFACE CUDA::cudart_static)
set(TILEWRIGHT_HAS_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, sm_90a")
