# Compiler flags and the search for CUDA.
#   tilewright_warnings   interface target: warnings; errors where TILEWRIGHT_WERROR is on
#   tilewright_cuda       interface target: flags and headers of CUDA sources (with CUDA only)
#   TILEWRIGHT_HAS_CUDA   whether the CUDA kernels are built
#   TILEWRIGHT_CUDART     what the library links as the CUDA runtime: NVIDIA's, or the emulator
#   tilewright_add_kernels   function: compiles a target's CUDA sources (with CUDA only)
#   TILEWRIGHT_COMMIT     the source's commit, for results files

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

if(TILEWRIGHT_WERROR)
  set(cxx_werror -Werror)
  set(nvcc_werror -Werror=all-warnings)
  set(ptxas_werror ,--warning-as-error)
  set(launcher_werror --werror)
endif()
add_library(tilewright_warnings INTERFACE)
target_compile_options(tilewright_warnings INTERFACE
  "$<$<COMPILE_LANGUAGE:CXX>:-Wall;-Wextra;-Wpedantic;-Wshadow;${cxx_werror}>"
  "$<$<COMPILE_LANGUAGE:CUDA>:-Xcompiler=-Wall,-Wextra;${nvcc_werror}>")

# git's short commit, or the version where the source is no checkout (a source distribution).
execute_process(COMMAND git -C ${PROJECT_SOURCE_DIR} rev-parse --short=10 HEAD
  OUTPUT_VARIABLE TILEWRIGHT_COMMIT OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT TILEWRIGHT_COMMIT)
  set(TILEWRIGHT_COMMIT ${PROJECT_VERSION})
endif()

set(TILEWRIGHT_HAS_CUDA OFF)
if(NOT TILEWRIGHT_CUDA MATCHES "^(AUTO|ON|OFF)$")
  message(FATAL_ERROR "TILEWRIGHT_CUDA is '${TILEWRIGHT_CUDA}', must be AUTO, ON or OFF")
endif()
if(TILEWRIGHT_CUDA STREQUAL "OFF")
  return()
endif()

# Where there is an nvcc, CUDA is left out only if somebody says so. The one that ./run keeps in
# .venv, where the system has none, counts only if CUDA is asked for.
file(GLOB venv_packages ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages)
set(venv_toolkit)
if(TILEWRIGHT_CUDA STREQUAL "ON")
  set(venv_toolkit ${venv_packages}/nvidia/cu13)
endif()
if(NOT CMAKE_CUDA_COMPILER AND DEFINED ENV{CUDACXX})
  set(CMAKE_CUDA_COMPILER $ENV{CUDACXX})
endif()
set(cuda_home /usr/local/cuda)
if(DEFINED ENV{CUDA_HOME})
  set(cuda_home $ENV{CUDA_HOME})
endif()
find_program(CMAKE_CUDA_COMPILER nvcc
  PATHS ${cuda_home} ${venv_toolkit} PATH_SUFFIXES bin NO_CMAKE_SYSTEM_PATH)
set(no_nvcc "there is no nvcc in CUDACXX, PATH or ${cuda_home} (CUDA_HOME)")
if(NOT CMAKE_CUDA_COMPILER AND TILEWRIGHT_CUDA STREQUAL "ON")
  message(FATAL_ERROR "TILEWRIGHT_CUDA is ON, but ${no_nvcc}. Install CUDA 13, or bring PyPI's nvcc "
    "by ./run setup --cuda")
elseif(NOT CMAKE_CUDA_COMPILER)
  message(STATUS "CUDA: off. This is a CPU-only build: ${no_nvcc}")
  return()
endif()
set(or_cpu_only "or build for the CPU alone: TILEWRIGHT_CUDA=OFF pip install . (with CMake, \
-DTILEWRIGHT_CUDA=OFF)")
execute_process(COMMAND ${CMAKE_CUDA_COMPILER} --version OUTPUT_VARIABLE nvcc_version ERROR_QUIET)
string(REGEX MATCH "release ([0-9.]+)" nvcc_version "${nvcc_version}")
if(NOT nvcc_version OR CMAKE_MATCH_1 VERSION_LESS 13)
  message(FATAL_ERROR "${CMAKE_CUDA_COMPILER} is no nvcc 13: it says '${nvcc_version}'. Set "
    "CUDACXX to one, ${or_cpu_only}")
endif()

# pip brings CUTLASS to where it builds (build_backend.py), ./run to .venv.
find_package(Python3 REQUIRED COMPONENTS Interpreter)
set(print_cutlass_wheel "from importlib.util import find_spec; \
print(*find_spec('cutlass_library').submodule_search_locations)")
execute_process(COMMAND ${Python3_EXECUTABLE} -c "${print_cutlass_wheel}"
  OUTPUT_VARIABLE cutlass_wheel OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
find_path(CUTLASS_INCLUDE_DIR cute/tensor.hpp
  HINTS ENV CUTLASS_PATH ${cutlass_wheel} ${venv_packages}/cutlass_library
  PATH_SUFFIXES include source/include
  DOC "CUTLASS 4.2's include directory")
if(NOT CUTLASS_INCLUDE_DIR)
  message(FATAL_ERROR "nvcc is there (${CMAKE_CUDA_COMPILER}), but CUTLASS 4.2's headers are not. "
    "Bring them by ./run setup --cuda, or by pip install --no-deps nvidia-cutlass==4.2.0.0 where "
    "pip builds without isolation, or set CUTLASS_PATH to a checkout of CUTLASS, ${or_cpu_only}")
endif()

# CMake 3.25 must be told of an architecture before it tries the compiler, and does not know how
# nvcc 13 is asked for C++20.
set(CMAKE_CUDA_ARCHITECTURES 90a-real)
enable_language(CUDA)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
find_package(CUDAToolkit 13.0 REQUIRED)

# The launcher warns of what ptxas only mentions, or fails the build on it, and keeps ptxas's report
# beside the object.
set(CMAKE_CUDA_COMPILER_LAUNCHER
  ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/cmake/nvcc_launcher.py ${launcher_werror}
  ${CCACHE_PROGRAM})

add_library(tilewright_cuda INTERFACE)
target_compile_options(tilewright_cuda INTERFACE
  $<$<COMPILE_LANGUAGE:CUDA>:-O3 --expt-relaxed-constexpr
  -Xptxas=-v,--warn-on-spills${ptxas_werror}>)
target_compile_definitions(tilewright_cuda INTERFACE $<$<COMPILE_LANGUAGE:CUDA>:NDEBUG>)
target_include_directories(tilewright_cuda SYSTEM INTERFACE ${CUTLASS_INCLUDE_DIR})
if(TILEWRIGHT_EMULATOR)
  set(CMAKE_CUDA_RUNTIME_LIBRARY None)
  set(TILEWRIGHT_CUDART $<BUILD_INTERFACE:tilewright_emulator>)
  set(kernel_form "PTX for the emulator")
  target_link_libraries(tilewright_cuda INTERFACE CUDA::toolkit tilewright_emulator)
else()
  set(TILEWRIGHT_CUDART CUDA::cudart_static)
  set(kernel_form "sm_90a")
  target_link_libraries(tilewright_cuda INTERFACE CUDA::cudart_static)
endif()

# tilewright_add_kernels(TARGET ARCHITECTURE SOURCE...): compiles kernels for the architecture whose
# instructions they are written in, or to PTX, with source lines, for the emulator.
function(tilewright_add_kernels target architecture)
  if(TILEWRIGHT_EMULATOR)
    set(code "code=[compute_${architecture}];--no-compress;-lineinfo")
  else()
    set(code "code=[sm_${architecture}]")
  endif()
  set_source_files_properties(${ARGN} PROPERTIES COMPILE_OPTIONS
    "--generate-code=arch=compute_${architecture},${code}")
  target_sources(${target} PRIVATE ${ARGN})
endfunction()

set(TILEWRIGHT_HAS_CUDA ON)
message(STATUS "CUDA: ${CMAKE_CUDA_COMPILER} ${CMAKE_CUDA_COMPILER_VERSION}, ${kernel_form}")
