# The rule for a named copy of Highway's sources. highway_copy(DIR) sets `highway_error` if the build cannot use DIR; else
# it sets `copy`, the absolute path, and `hwy_VERSION`. A relative DIR starts at the root of this repository.
# `HIGHWAY=DIR cmake -P csrc/highway_copy.cmake` prints the error, if there is one (.ci/highway).
set(oldest 1.0.3)

function(highway_copy copy)
  set(highway_error "" PARENT_SCOPE)
  if(copy MATCHES ";")
    # Without the path, because CMake may have made each part absolute already.
    set(highway_error "got a folder of Highway with a semicolon in its path, where CMake divides lists; need another path" PARENT_SCOPE)
    return()
  endif()
  cmake_path(ABSOLUTE_PATH copy BASE_DIRECTORY "${CMAKE_CURRENT_FUNCTION_LIST_DIR}/.." NORMALIZE)
  set(parts "")
  # Highway 1.0 has its version in highway.h, newer ones in base.h.
  foreach(header highway.h base.h)
    if(EXISTS "${copy}/hwy/${header}")
      file(STRINGS "${copy}/hwy/${header}" found REGEX "#define HWY_(MAJOR|MINOR|PATCH) [0-9]+")
      list(APPEND parts ${found})
    endif()
  endforeach()
  list(TRANSFORM parts REPLACE "[^0-9]+" "")
  list(JOIN parts "." version)
  if(NOT EXISTS "${copy}/CMakeLists.txt" OR NOT version)
    set(highway_error "got ${copy}, which has no sources of Google Highway (CMakeLists.txt, hwy/highway.h)" PARENT_SCOPE)
  elseif(version VERSION_LESS oldest)
    set(highway_error "got Google Highway ${version} in ${copy}, need ${oldest} or newer" PARENT_SCOPE)
  endif()
  set(copy "${copy}" PARENT_SCOPE)
  set(hwy_VERSION ${version} PARENT_SCOPE)
endfunction()

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  cmake_minimum_required(VERSION 3.25)
  highway_copy("$ENV{HIGHWAY}")
  if(highway_error)
    message(NOTICE "${highway_error}")
  endif()
endif()
