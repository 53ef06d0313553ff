# SPDX-License-Identifier: Apache-2.0
# What every target of this project is compiled with: warnings, sanitizers, visibility, contraction.

set(msda_warnings -Wall -Wextra -Wpedantic -Wshadow -Wvla)
set(msda_c_warnings -Wstrict-prototypes -Wmissing-prototypes)
set(msda_cuda_warnings -Wall -Wextra -Wshadow -Wno-missing-field-initializers)


# Host code: the launch stubs that nvcc makes would need the C++ run-time library without the last two.
list(JOIN msda_cuda_warnings "," msda_cuda_flags)
set(msda_cuda_flags -Xcompiler=${msda_cuda_flags},-ffp-contract=off,-fno-exceptions,-fno-threadsafe-statics)
# Makes the machine code of all architectures a seventh of its size; the driver unpacks what it loads.
if(CMAKE_CUDA_COMPILER_VERSION VERSION_GREATER_EQUAL 12.8)
    list(APPEND msda_cuda_flags --compress-mode=size)
endif()

function(msda_target name)
    set_target_properties(${name} PROPERTIES
        C_STANDARD 11 C_STANDARD_REQUIRED ON C_EXTENSIONS OFF
        CXX_STANDARD 17 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
        CUDA_STANDARD 17 CUDA_STANDARD_REQUIRED ON CUDA_EXTENSIONS OFF
        C_VISIBILITY_PRESET hidden CXX_VISIBILITY_PRESET hidden CUDA_VISIBILITY_PRESET hidden
        VISIBILITY_INLINES_HIDDEN ON)

    # A fused multiply-add rounds once where the definition rounds twice, and then picks another pixel.
    target_compile_options(${name} PRIVATE
        $<$<COMPILE_LANGUAGE:C,CXX>:-ffp-contract=off>
        $<$<COMPILE_LANGUAGE:C,CXX>:${msda_warnings}>
        $<$<COMPILE_LANGUAGE:C>:${msda_c_warnings}>
        $<$<COMPILE_LANGUAGE:CUDA>:${msda_cuda_flags}>)

    if(MSDA_WERROR)
        target_compile_options(${name} PRIVATE
            $<$<COMPILE_LANGUAGE:C,CXX>:-Werror>
            $<$<COMPILE_LANGUAGE:CUDA>:--Werror=all-warnings -Xcompiler=-Werror>)
    endif()

    if(MSDA_SANITIZE)
        set(sanitize -fsanitize=${MSDA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
        target_compile_options(${name} PRIVATE $<$<COMPILE_LANGUAGE:C,CXX>:${sanitize}>)
        target_link_options(${name} PRIVATE -fsanitize=${MSDA_SANITIZE})
    endif()
endfunction()
