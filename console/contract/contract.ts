/**
 * Holds `calls.ts` and `types.ts` against the server's own description (`schema.ts`, which
 * `npm run contract` makes from its OpenAPI document): where they differ, this file does not pass the check of types, and
 * the error names the request. Nothing of it is in the built console.
 */
import type { Calls, Path } from '../src/api/calls';
import type { paths } from './schema';

type Operation<P extends Path> = paths[P]['post'];
type Body<P extends Path> = Operation<P>['requestBody']['content']['application/json'];
type Answer<P extends Path> = Operation<P>['responses'][200]['content']['application/json'];

/**
 * An answer as it comes: what the description calls optional may be left out of what is sent to the
 * server, and is always in what it answers.
 */
type Told<T> = T extends readonly unknown[]
  ? // Of a list, and of what has places of different types.
    { [K in keyof T]: Told<T[K]> }
  : T extends object
    ? { [K in keyof T]-?: Told<Exclude<T[K], undefined>> }
    : T;

/** Requests that the server would not take, or with fields that it does not know. */
type WrongRequest = {
  [P in Path]: Calls[P][0] extends Body<P>
    ? keyof Calls[P][0] extends keyof Body<P>
      ? never
      : P
    : P;
}[Path];

/** The description of events says each of their parts apart, which no type joins again. */
type Described = Exclude<Path, '/v1/zpool/events' | '/v1/events/history'>;

/** Answers that are not what the console takes them for. */
type WrongReply = { [P in Described]: Told<Answer<P>> extends Calls[P][1] ? never : P }[Described];

type Nothing<T> = [T] extends [never] ? true : T;

export const requestsAreTaken: Nothing<WrongRequest> = true;
export const repliesAreUnderstood: Nothing<WrongReply> = true;
