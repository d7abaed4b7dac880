# What Proxmox VE's ZFSPoolPlugin.pm and its test (run_test_zfspoolplugin.pl) need of the rest of
# Proxmox VE, in so far as neither has to do with ZFS: commands are run, and calls are passed on to
# the plugin. scripts/neighbours runs perl with this before the test (-M).
package main;

use strict;
use warnings;

BEGIN {
    my @names = qw(JSONSchema ProcFSTools RPCEnvironment Storage Storage/Plugin Cluster Tools);
    $INC{"PVE/$_.pm"} = __FILE__ for @names;
    $INC{'Net/IP.pm'} = __FILE__;
}

package PVE::JSONSchema;
sub register_format { }

package PVE::ProcFSTools;

sub parse_proc_mounts {
    open(my $file, '<', '/proc/mounts') or die "mounts: $!";
    return [map { [split / /] } <$file>];
}

package PVE::RPCEnvironment;
sub is_worker { return 0 }

package PVE::Tools;
use File::Temp;

sub import {
    my (undef, @names) = @_;
    no strict 'refs';
    *{ caller() . "::$_" } = \&{$_} for @names;
}

sub file_set_contents {
    my ($path, $text) = @_;
    open(my $file, '>', $path) or die "$path: $!";
    print $file $text;
    close($file) or die "$path: $!";
}

sub file_get_contents {
    my ($path) = @_;
    open(my $file, '<', $path) or die "$path: $!";
    local $/;
    return <$file>;
}

# A command as a list or a text; its lines go to `outfunc` and `errfunc`. Dies with what it said.
sub run_command {
    my ($command, %how) = @_;
    my @words = ref($command) ? @$command : ('sh', '-c', $command);
    my $said = File::Temp->new;
    my $pid = open(my $out, '-|') // die "fork: $!";
    if ($pid == 0) {
        open(STDERR, '>&', $said) or die "stderr: $!";
        exec(@words) or die "exec: $!";
    }
    while (my $line = <$out>) {
        chomp $line;
        if ($how{outfunc}) { $how{outfunc}->($line) }
        elsif (!$how{quiet}) { print "$line\n" }
    }
    close($out);
    my $status = $?;
    seek($said, 0, 0);
    chomp(my @said = <$said>);
    for my $line (@said) {
        if ($how{errfunc}) { $how{errfunc}->($line) }
        elsif (!$how{quiet}) { print STDERR "$line\n" }
    }
    return $status >> 8 if $how{noerr};
    return 0 if $status == 0;
    # The last line of what it said, as Proxmox's has it.
    my $why = $said[-1] // 'failed';
    die "command '@words' failed: $why\n" if !$how{errmsg} || ref($how{errmsg});
    die "$how{errmsg}: $why\n";
}

package PVE::Storage::Plugin;
sub verify_path { return $_[0] }

sub find_free_diskname {
    my ($class, $storeid, $scfg, $vmid, $format) = @_;
    my %taken = map { $_->{name} => 1 } @{ $class->list_images($storeid, $scfg) };
    my $kind = $format eq 'subvol' ? 'subvol' : 'vm';
    for my $number (0 .. 99) {
        my $name = "$kind-$vmid-disk-$number";
        return $name if !$taken{$name};
    }
    die "no name is free\n";
}

package PVE::Storage;
use strict;
use warnings;

my $class = 'PVE::Storage::ZFSPoolPlugin';
sub parse_volume_id { return split(/:/, $_[0], 2) }

# The configuration of a volume's storage, the storage's name, the volume's.
sub of {
    my ($cfg, $volid) = @_;
    my ($storeid, $volname) = parse_volume_id($volid);
    return ($cfg->{ids}->{$storeid}, $storeid, $volname);
}
sub parse_volname { my (undef, undef, $name) = of(@_[0, 1]); return $class->parse_volname($name) }

sub path {
    my ($scfg, $storeid, $name) = of(@_[0, 1]);
    return $class->path($scfg, $name, $storeid, $_[2]);
}

for my $call (
    qw(volume_size_info volume_snapshot volume_snapshot_rollback volume_snapshot_delete
    volume_resize volume_rollback_is_possible)
) {
    no strict 'refs';
    *$call = sub {
        my ($cfg, $volid, @more) = @_;
        my ($scfg, $storeid, $name) = of($cfg, $volid);
        # Whoever rolls back asks first.
        $class->volume_rollback_is_possible($scfg, $storeid, $name, @more)
            if $call eq 'volume_snapshot_rollback';
        return $class->$call($scfg, $storeid, $name, @more);
    };
}

sub volume_has_feature {
    my ($cfg, $feature, $volid, @more) = @_;
    my ($scfg, $storeid, $name) = of($cfg, $volid);
    return $class->volume_has_feature($scfg, $feature, $storeid, $name, @more);
}

sub activate_storage { return $class->activate_storage($_[1], $_[0]->{ids}->{ $_[1] }, {}) }
sub deactivate_storage { return $class->deactivate_storage($_[1], $_[0]->{ids}->{ $_[1] }, {}) }

sub activate_volumes {
    my ($cfg, $list) = @_;
    for my $volid (@$list) {
        my ($scfg, $storeid, $name) = of($cfg, $volid);
        $class->activate_volume($storeid, $scfg, $name, undef, {});
    }
}

sub vdisk_alloc {
    my ($cfg, $storeid, @more) = @_;
    return "$storeid:" . $class->alloc_image($storeid, $cfg->{ids}->{$storeid}, @more);
}

sub vdisk_clone {
    my ($cfg, $volid, $vmid, $snap) = @_;
    my ($scfg, $storeid, $name) = of($cfg, $volid);
    return "$storeid:" . $class->clone_image($scfg, $storeid, $name, $vmid, $snap);
}

sub vdisk_create_base {
    my ($scfg, $storeid, $name) = of(@_);
    return "$storeid:" . $class->create_base($storeid, $scfg, $name);
}

sub vdisk_free {
    my ($scfg, $storeid, $name) = of(@_);
    return $class->free_image($storeid, $scfg, $name);
}

sub vdisk_list {
    my ($cfg, $storeid, $vmid, $list) = @_;
    my $scfg = $cfg->{ids}->{$storeid};
    return { $storeid => $class->list_images($storeid, $scfg, $vmid, $list, {}) };
}
sub template_list { return {} }

sub scan_zfs {
    my @found;
    my $line = sub {
        my ($pool, $size, $used) = $_[0] =~ m/^(\S+)\s+(\S+)\s+(\S+)$/ or return;
        push @found, { pool => $pool, size => $size + 0, free => $size - $used }
            if $pool !~ m!/(sub|base)vol-\d+-[^/]+$!;
    };
    PVE::Tools::run_command(
        [qw(zfs list -t filesystem -Hp -o), 'name,avail,used'], outfunc => $line,
    );
    return \@found;
}

require PVE::Storage::ZFSPoolPlugin;

1;
