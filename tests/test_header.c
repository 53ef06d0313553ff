/* SPDX-License-Identifier: Apache-2.0 */
/* The public header, first and alone, in C and in C++: see header.* in CMakeLists.txt. */
#include <msda/msda.h>

int main(void);

int main(void)
{
    msda_problem problem;
    msda_problem_init(&problem);
    problem.value_dtype = MSDA_DTYPE_F32;
    return msda_problem_add_level(&problem, 2, 3, 1) == MSDA_STATUS_SUCCESS && msda_version() == MSDA_VERSION ? 0 : 1;
}
