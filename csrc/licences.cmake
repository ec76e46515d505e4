# Installs the licence texts of Highway and pybind11 into the wheel's dist-info/licenses, because the wheel has code of
# both. The texts come from the same place as the compiled sources.
function(install_licence name) # and patterns of files: the first pattern with a match is used
  foreach(pattern IN LISTS ARGN)
    file(GLOB texts ${pattern})
    if(texts)
      install(FILES ${texts} DESTINATION ${SKBUILD_METADATA_DIR}/licenses/${name})
      return()
    endif()
  endforeach()
  message(NOTICE "[licences] found no licence text of ${name}; do not publish this wheel")
endfunction()

# Links are followed, because Homebrew's prefix has links to the folders of packages.
if(highway_SOURCE_DIR)
  install_licence(highway "${highway_SOURCE_DIR}/LICENSE*")
else()
  file(REAL_PATH "${hwy_DIR}/../../.." installed)
  install_licence(highway
    "${installed}/LICENSE*" # Homebrew
    "/usr/share/doc/libhwy-dev/copyright" # Debian
    "/usr/share/licenses/highway/LICENSE*") # Fedora, Arch
endif()

file(REAL_PATH "${pybind11_DIR}/../../.." installed)
install_licence(pybind11
  "${pybind11_DIR}/../../../../pybind11-*.dist-info/licenses/LICENSE*" # PyPI
  "${pybind11_DIR}/../../../../pybind11-*.dist-info/LICENSE*"
  "${installed}/LICENSE*"
  "/usr/share/doc/pybind11-dev/copyright"
  "/usr/share/licenses/pybind11/LICENSE*")
