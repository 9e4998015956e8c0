# Run as a script: see CMakeLists.txt beside it for the variables.
set(prefix ${WORK_DIR}/prefix)
file(REMOVE_RECURSE ${prefix})

function(run)
  execute_process(COMMAND ${ARGN} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

run(${CMAKE_COMMAND} --install ${BINARY_DIR} --prefix ${prefix})
foreach(example embed decode)
  set(build ${WORK_DIR}/${example})
  file(REMOVE_RECURSE ${build})
  run(${CMAKE_COMMAND} -S ${EXAMPLES_DIR}/${example} -B ${build} -G ${GENERATOR}
    -DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_COMPILER=${CXX_COMPILER} -DCMAKE_CXX_FLAGS=${CXX_FLAGS}
    -DCMAKE_PREFIX_PATH=${prefix} -DCUDAToolkit_ROOT=${CUDA_TOOLKIT})
  run(${CMAKE_COMMAND} --build ${build})
  run(${build}/${example})
endforeach()
