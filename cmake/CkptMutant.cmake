# ckpt_mutant(NAME sim_mutant_x SCRIPT mutants/x.sed FILE node/captures.cpp
#             MAIN ckpt_sim_main WORLD ckpt_sim_world [ARGUMENTS ...])
#
# A program of MAIN (an object library) and WORLD in which libckpt/FILE has the bug that SCRIPT
# plants: the mutated source is linked before the library that holds the sound one, so that nothing
# of it is in the product. It is a test of the same name, whose properties the caller sets. A script
# that changes nothing fails at configure time, so that none goes stale.
function(ckpt_mutant)
  cmake_parse_arguments(ARG "" "NAME;SCRIPT;FILE;MAIN;WORLD" "ARGUMENTS" ${ARGN})
  set(source ${PROJECT_SOURCE_DIR}/libckpt/${ARG_FILE})
  set(script ${CMAKE_CURRENT_SOURCE_DIR}/${ARG_SCRIPT})
  set(mutated ${CMAKE_CURRENT_BINARY_DIR}/${ARG_NAME}.cpp)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source} ${script})
  execute_process(COMMAND sed -E -f ${script} ${source} OUTPUT_FILE ${mutated}.new
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND cmp -s ${source} ${mutated}.new RESULT_VARIABLE is_changed)
  if(is_changed EQUAL 0)
    message(FATAL_ERROR "${script} no longer changes libckpt/${ARG_FILE}")
  endif()
  configure_file(${mutated}.new ${mutated} COPYONLY)
  add_executable(${ARG_NAME} $<TARGET_OBJECTS:${ARG_MAIN}> ${mutated})
  # In a unity build, too, the sound one is an object of its own, which the linker leaves out.
  string(REGEX MATCH "^[a-z]+" module ${ARG_FILE})
  set_source_files_properties(${source} TARGET_DIRECTORY ckpt_${module}
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  target_link_libraries(${ARG_NAME} PRIVATE ${ARG_WORLD})
  ckpt_use_precompiled_header(${ARG_NAME})
  add_test(NAME ${ARG_NAME} COMMAND ${ARG_NAME} ${ARG_ARGUMENTS})
endfunction()
