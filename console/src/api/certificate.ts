/** Messages about the certificate of the console (crate `api`, module `certificate`). */
import type { Empty } from './types';

export interface AcmeSettings {
  names: string[];
  contact: string | null;
  directory: string | null;
  ca_file: string | null;
  listen: string | null;
}

export interface CertificateReport {
  by: 'server' | 'person' | 'acme';
  names: string[];
  issuer: string;
  begin_s: number;
  end_s: number;
}

export interface AcmeProgress {
  is_working: boolean;
  failures: number;
  problem: string | null;
  next_s: number | null;
}

export interface CertificateStatus {
  certificate: CertificateReport | null;
  acme: AcmeSettings | null;
  progress: AcmeProgress;
  is_given: boolean;
}

export interface CertificateCalls {
  '/v1/certificate/status': [Empty, CertificateStatus];
  '/v1/certificate/settings-set': [{ acme: AcmeSettings | null }, Empty];
  '/v1/certificate/renew': [{ only_if_due?: boolean }, { problem: string | null }];
}
