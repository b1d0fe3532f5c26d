// The folder that a conversion fills: may it, what is there already, what is still to be written.
#ifndef NIB_CONVERT_DESTINATION_H
#define NIB_CONVERT_DESTINATION_H

#include "convert/plan.h"

// Makes the folder and marks it as this conversion's. NIB_ERR_ARGUMENT when it is the source, or holds anything that this
// conversion did not begin.
nib_status nib_destination_prepare(const struct nib_plan *plan, const char *source, const char *destination,
                                   struct nib_error *err);

// Writes this run's share of the files; those that are whole already are kept or, by the options, refused.
nib_status nib_destination_fill(struct nib_plan *plan, const char *folder, struct nib_error *err);

// Takes the mark away: nothing is left to be done.
void nib_destination_finish(const char *folder);

#endif
