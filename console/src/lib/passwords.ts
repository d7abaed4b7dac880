/** Characters that a password of the console has at least; the server says so too. */
export const PASSWORD_LEAST = 10;
