// Text that quotes somebody else's bytes, made safe to print and to put into JSON.
#ifndef NIB_BASE_UTF8_TEXT_H
#define NIB_BASE_UTF8_TEXT_H

// In place: control bytes and bytes that are not UTF-8 (also of a character that was cut off) become '?'.
void nib_make_printable(char *text);

#endif
