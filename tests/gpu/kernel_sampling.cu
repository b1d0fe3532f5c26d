#include "kernel_check.h"
void check_sampling()
{
}
void time_sampling(double)
{
}
